// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Every call with every allocation and every copy in it failing in turn. It must say so, leave nothing behind, and work the next
//! time.

use std::{fs::OpenOptions, path::Path, process};

use anyhow::{bail, ensure, Context as _, Result};
use rustix::io::Errno;

use crate::{
    abi::qiao_create_cq_resp,
    checks::Checks,
    failures::{Failures, Injected},
    memory::{Arena, PAGE},
    uverbs::{
        access, alloc_pd, dealloc_pd, dereg_mr, destroy_cq, destroy_qp, get_context, Call, Context,
        ContextResponse, CreateCq, CreateCqResponse, CreateQp, Handle, ModifyQp, RegMr, Uverbs,
    },
};

/// More failures than any call can have: a sweep that gets so far does not end.
const LIMIT: u32 = 2000;

/// What a call says for want of memory, or of a copy.
const SHORTAGE: &[Errno] = &[Errno::NOMEM, Errno::FAULT];

/// The core says that a mapping cannot be made, whatever the reason, by `EAGAIN`: see `rdma_user_mmap_io`.
const UNMAPPED: &[Errno] = &[Errno::NOMEM, Errno::FAULT, Errno::AGAIN];

/// Sweeps over all calls on the RDMA device `name`, whose file is `path`.
pub fn run(name: &str, path: &Path) -> Result<()> {
    let mut sweep = Sweep {
        failures: Failures::new()?,
        checks: Checks::new(),
        device: name.into(),
    };
    sweep.files(path)?;
    let arena = Arena::new()?;
    let mut user = Context::open(path)?;
    let pd = user.pd().context("allocating a PD")?;
    let cq = user
        .cq(&CreateCq::good(arena.writable()))
        .context("creating a CQ")?;

    let mr = |pages| RegMr {
        start: arena.writable() + 8 * PAGE,
        length: pages * PAGE,
        hca_va: arena.writable() + 8 * PAGE,
        pd_handle: pd,
        access_flags: access::LOCAL_WRITE | access::REMOTE_WRITE,
    };
    let good_cq = CreateCq::good(arena.writable() + PAGE);
    let good_qp = CreateQp::good(pd, cq, arena.writable() + 4 * PAGE);
    let objects: [(&str, Call, Unmake); 5] = [
        ("PD", alloc_pd(), dealloc_pd),
        ("MR of one page", mr(1).call(), dereg_mr),
        ("MR of many pages", mr(48).call(), dereg_mr),
        ("CQ", good_cq.call(), destroy_cq),
        ("QP", good_qp.call(), destroy_qp),
    ];
    for (name, make, unmake) in &objects {
        sweep.object(&mut user, name, make, *unmake)?;
    }
    sweep.transitions(&mut user, &good_qp)?;
    sweep.mapping(&mut user, &good_cq)?;
    sweep.checks.finish();
    Ok(())
}

/// Destroys the object with a handle.
type Unmake = fn(u32) -> Call;

type Prepare<'a, P> = &'a dyn Fn(&mut Context) -> Result<P>;
type Make<'a, P, T> = &'a dyn Fn(&mut Context, &mut P) -> Result<T, Errno>;
type Clean<'a, P, T> = &'a dyn Fn(&mut Context, P, Result<T, Errno>) -> Result<()>;

/// A call that fails in all ways.
struct Case<'a, P, T> {
    name: String,
    /// The right ones.
    errors: &'static [Errno],
    /// What must be there before it.
    prepare: Prepare<'a, P>,
    /// The call.
    call: Make<'a, P, T>,
    /// Makes the call again if it failed, which must work, and undoes both.
    clean: Clean<'a, P, T>,
}

struct Sweep {
    failures: Failures,
    checks: Checks,
    device: String,
}

impl Sweep {
    /// Makes a call again and again, until no allocation or copy is left to fail.
    fn sweep<P, T>(&mut self, user: &mut Context, case: &Case<'_, P, T>) -> Result<()> {
        let name = &case.name;
        let before = self.objects()?;
        let mut refused = 0;
        let mut wrong = Vec::new();
        for n in 1.. {
            ensure!(n < LIMIT, "{name}: there is no end to what may fail");
            let mut prepared = (case.prepare)(user).with_context(|| format!("preparing {name}"))?;
            let (result, injected) = self
                .failures
                .inject(n, || (case.call)(user, &mut prepared))?;
            match (&result, injected) {
                // The kernel may have been able to do without.
                (Ok(_), _) => {}
                (Err(errno), Injected::Yes) if case.errors.contains(errno) => refused += 1,
                (Err(errno), _) => wrong.push(format!("{n} {errno}")),
            }
            (case.clean)(user, prepared, result)
                .with_context(|| format!("{name}, after failure {n}"))?;
            if injected == Injected::No {
                break;
            }
        }
        let after = self.objects()?;
        self.checks.holds(
            &format!("{name}: fails and then works"),
            wrong.is_empty() && refused > 0,
            format_args!("{refused} failures, with other errors {wrong:?}"),
        );
        self.checks
            .holds(&format!("{name}: leaves nothing"), before == after, &after);
        Ok(())
    }

    /// How many objects of each kind the RDMA device has, as restrack counts them.
    fn objects(&self) -> Result<String> {
        let output = process::Command::new("rdma")
            .args(["resource", "show", &self.device])
            .output()
            .context("starting rdma")?;
        ensure!(output.status.success(), "rdma: {}", output.status);
        let said = String::from_utf8(output.stdout)?;
        let (_, counts) = said
            .rsplit_once(": ")
            .with_context(|| format!("rdma said {said:?}"))?;
        Ok(counts.trim().into())
    }

    /// Opening the device file, and getting a context.
    fn files(&mut self, path: &Path) -> Result<()> {
        let mut user = Context::open(path)?;
        let open = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .map_err(|error| Errno::from_io_error(&error).expect("open() fails with an errno"))
        };
        self.sweep(
            &mut user,
            &Case {
                name: "opening".into(),
                errors: SHORTAGE,
                prepare: &|_| Ok(()),
                call: &|_, ()| open(),
                clean: &|_, (), result| {
                    result.or_else(|_| open()).context("opening again")?;
                    Ok(())
                },
            },
        )?;
        let context = |dev: &mut Uverbs| dev.ask::<ContextResponse>(&get_context());
        self.sweep(
            &mut user,
            &Case {
                name: "context".into(),
                errors: SHORTAGE,
                prepare: &|_| Uverbs::open(path),
                call: &|_, dev| context(dev),
                // Its file for events stays open until this program ends: no safe call closes a file by its number.
                clean: &|_, mut dev, result| {
                    result
                        .or_else(|_| context(&mut dev))
                        .context("getting it again")?;
                    Ok(())
                },
            },
        )
    }

    /// Making an object, and destroying it.
    fn object(
        &mut self,
        user: &mut Context,
        name: &str,
        make: &Call,
        unmake: Unmake,
    ) -> Result<()> {
        let made = |user: &mut Context| user.dev.ask::<Handle>(make).map(|made| made.handle);
        self.sweep(
            user,
            &Case {
                name: format!("{name}, made"),
                errors: SHORTAGE,
                prepare: &|_| Ok(()),
                call: &|user, ()| made(user),
                clean: &|user, (), result| {
                    let handle = result.or_else(|_| made(user)).context("making it again")?;
                    user.dev.call(&unmake(handle)).context("destroying it")?;
                    Ok(())
                },
            },
        )?;
        self.sweep(
            user,
            &Case {
                name: format!("{name}, destroyed"),
                errors: SHORTAGE,
                prepare: &|user| made(user).context("making it"),
                call: &|user, handle| user.dev.call(&unmake(*handle)),
                clean: &|user, handle, result| match result {
                    Ok(_) => Ok(()),
                    Err(first) => destroyed_again(user, unmake(handle), first),
                },
            },
        )
    }

    /// Taking a QP from state to state.
    fn transitions(&mut self, user: &mut Context, good: &CreateQp) -> Result<()> {
        type Step = fn(u32) -> ModifyQp;
        const STEPS: [(&str, Step); 3] = [
            ("INIT", ModifyQp::to_init),
            ("RTR", ModifyQp::to_rtr),
            ("ERR", ModifyQp::to_err),
        ];
        for (index, (state, step)) in STEPS.iter().enumerate() {
            let modify = |user: &mut Context, qp: u32| user.dev.call(&step(qp).call());
            self.sweep(
                user,
                &Case {
                    name: format!("QP, to {state}"),
                    errors: SHORTAGE,
                    prepare: &|user| {
                        let qp = user.qp(good).context("creating it")?;
                        for (state, before) in &STEPS[..index] {
                            user.dev
                                .call(&before(qp).call())
                                .with_context(|| format!("to {state}"))?;
                        }
                        Ok(qp)
                    },
                    call: &|user, qp| modify(user, *qp),
                    clean: &|user, qp, result| {
                        result.or_else(|_| modify(user, qp)).context("again")?;
                        user.dev.call(&destroy_qp(qp)).context("destroying it")?;
                        Ok(())
                    },
                },
            )?;
        }
        Ok(())
    }

    /// Mapping a doorbell page.
    fn mapping(&mut self, user: &mut Context, good: &CreateCq) -> Result<()> {
        self.sweep(
            user,
            &Case {
                name: "doorbells, mapped".into(),
                errors: UNMAPPED,
                prepare: &|user| {
                    user.dev
                        .ask_both::<CreateCqResponse, qiao_create_cq_resp>(&good.call())
                        .context("creating a CQ")
                },
                call: &|user, (_, driver)| user.dev.map(driver.db_mmap_offset, 1),
                clean: &|user, (core, driver), result| {
                    result
                        .or_else(|_| user.dev.map(driver.db_mmap_offset, 1))
                        .context("mapping it again")?;
                    user.dev
                        .call(&destroy_cq(core.cq_handle))
                        .context("destroying the CQ")?;
                    Ok(())
                },
            },
        )
    }
}

/// Destroys an object again that could not be destroyed. It is gone only if what failed was the copy of the response.
fn destroyed_again(user: &mut Context, unmake: Call, first: Errno) -> Result<()> {
    match user.dev.call(&unmake) {
        Ok(_) => Ok(()),
        Err(Errno::NOENT) if first == Errno::FAULT => Ok(()),
        Err(errno) => bail!("it failed with {first}, and again with {errno}"),
    }
}
