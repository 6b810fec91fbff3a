// SPDX-License-Identifier: GPL-2.0

//! The PCI driver.
//!
//! Each function that is bound has a registered RDMA device, except after a reset that it did not
//! survive. A reset ends the RDMA device, and starts another.

use crate::{
    caps::Caps,
    cmdq,
    device::{
        Data,
        Qiao, //
    },
    eq::{
        self,
        AsyncHandler,
        CompletionHandler, //
    },
    fatal::{
        Cause,
        Part, //
    },
    hal::{
        self,
        Control,
        Hal,
        Refusal,
        State, //
    },
    hca::{
        Hca,
        Parts, //
    }, //
};
use kernel::{
    device::Core,
    dma::DmaMask,
    io::poll::read_poll_timeout,
    new_mutex,
    pci,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    },
    time::Delta, //
};
use qiao_hw::{
    bar,
    caps::feature, //
};
use rdma::{
    pci::{
        Anchored,
        Binding,
        BusMaster,
        ChannelState,
        Driver,
        Enabled,
        Irq,
        Recovery,
        Vectors, //
    },
    Registration,
    UnregisteredDevice, //
};

/// How long a change of state may take. The capability block, which has the limit for commands,
/// can only be read after the reset.
const STATE_TIMEOUT: Delta = Delta::from_secs(30);

/// How often the state is read meanwhile.
const STATE_POLL: Delta = Delta::from_millis(1);

kernel::pci_device_table!(
    PCI_TABLE,
    <QiaoDriver as Driver>::IdInfo,
    [(pci::DeviceId::from_class(bar::pci::CLASS, 0xff_ff_ff), ())]
);

/// The driver of functions of the Qiao interface.
pub(crate) struct QiaoDriver;

/// What the driver has for a bound function.
#[pin_data]
pub(crate) struct Function<'bound> {
    binding: Binding<'bound>,
    /// [`None`] from the start of a reset to its end, or for good if the device did not come back.
    #[pin]
    live: Mutex<Option<Live<'bound>>>,
}

impl<'bound> Function<'bound> {
    /// Starts the device again, after a reset.
    fn restart(&self, dev: &pci::Device<Core<'_>>) -> Result {
        let live = Live::start(dev, self.binding)?;
        *self.live.lock() = Some(live);
        Ok(())
    }

    /// Ends the device.
    fn stop(&self) {
        let live = self.live.lock().take();
        drop(live);
    }
}

impl Driver for QiaoDriver {
    type IdInfo = ();
    type Data<'bound> = Function<'bound>;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;
    const DMA_MASK: DmaMask = DmaMask::new::<64>();
    // Pages of a page list are up to 2 GiB.
    const DMA_MAX_SEGMENT: u32 = 1 << 31;

    fn probe<'bound>(
        dev: &'bound pci::Device<Core<'_>>,
        binding: Binding<'bound>,
        _info: Option<&'bound Self::IdInfo>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            let live = Live::start(dev, binding)?;
            Ok(try_pin_init!(Function {
                binding,
                live <- new_mutex!(Some(live)),
            }? Error))
        })
    }

    fn unbind<'bound>(_dev: &'bound pci::Device<Core<'_>>, this: Pin<&Function<'bound>>) {
        if let Some(live) = this.live.lock().as_ref() {
            // If the device was pulled out, nobody shall wait for it.
            live.hca.cmd().examine();
        }
        this.stop();
    }

    fn shutdown<'bound>(_dev: &'bound pci::Device<Core<'_>>, this: Pin<&Function<'bound>>) {
        if let Some(live) = this.live.lock().as_ref() {
            live.hca.cmd().retire();
        }
    }

    fn error_detected<'bound>(
        _dev: &'bound pci::Device<Core<'_>>,
        this: Pin<&Function<'bound>>,
        state: ChannelState,
    ) -> Recovery {
        if state == ChannelState::Normal {
            return Recovery::CanRecover;
        }
        if let Some(live) = this.live.lock().as_ref() {
            live.hca.cmd().fail(Cause::Bus);
        }
        this.stop();
        match state {
            ChannelState::PermanentFailure => Recovery::Disconnect,
            ChannelState::Frozen | ChannelState::Normal => Recovery::NeedReset,
        }
    }

    fn slot_reset<'bound>(
        dev: &'bound pci::Device<Core<'_>>,
        this: Pin<&Function<'bound>>,
    ) -> Result {
        this.restart(dev)
    }

    fn reset_prepare<'bound>(_dev: &'bound pci::Device<Core<'_>>, this: Pin<&Function<'bound>>) {
        this.stop();
    }

    fn reset_done<'bound>(dev: &'bound pci::Device<Core<'_>>, this: Pin<&Function<'bound>>) {
        if let Err(e) = this.restart(dev) {
            dev_err!(dev, "device did not survive its reset: {e:?}\n");
        }
    }
}

/// A device at work.
struct Live<'bound> {
    // Dropped in this order. Operations use interrupts, and all use the memory of the `Hca`, which
    // the device must have left.
    _registration: Option<Anchored<'bound, Registration<'bound, Qiao>>>,
    _quiet: Quiet<'bound>,
    completions: KVec<Anchored<'bound, Irq<'bound, CompletionHandler<'bound>>>>,
    events: Anchored<'bound, Irq<'bound, AsyncHandler<'bound>>>,
    hca: Arc<Hca<'bound>>,
}

/// Ends all activity of the device when it is dropped.
struct Quiet<'bound>(Arc<Hca<'bound>>);

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        self.0.cmd().retire();
    }
}

impl<'bound> Live<'bound> {
    /// Brings a function from any state to a registered device.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the function is not a part of this interface, or not one that this driver can
    /// operate, which it says in one line; others if something fails.
    fn start(dev: &pci::Device<Core<'_>>, binding: Binding<'bound>) -> Result<Self> {
        let enabled = Enabled::new(dev, binding)?;
        let control = map_control(binding)?;
        let hal = identify(binding, &control)?;
        reset(binding, hal, &control)?;
        let caps = read_caps(binding, hal, &control)?;
        let doorbell_bar = map_doorbells(binding)?;

        let vectors = allocate_vectors(binding, &caps)?;
        // `allocate_vectors` asks for what fits.
        let comp_vectors = u16::try_from(vectors.count())?.saturating_sub(eq::FIRST_COMPLETION);
        let mut device = UnregisteredDevice::<Qiao>::new()?;
        if caps.features.get() & feature::MAD != 0 {
            device.set_mads();
        }
        if caps.features.get() & feature::SRQ != 0 {
            device.set_srqs();
        }
        let master = BusMaster::new(dev, binding);
        let part = Part::new(binding, control, hal, master, device.handle());
        let hca = Hca::new(Parts {
            enabled,
            part: Arc::pin_init(part, GFP_KERNEL)?,
            doorbell_bar,
            caps,
            comp_vectors,
        })?;
        let mut live = Self::start_events(binding, hca, &vectors)?;
        live.register(binding, device)?;
        Ok(live)
    }

    /// Starts the command queue and the event queues.
    fn start_events(
        binding: Binding<'bound>,
        hca: Arc<Hca<'bound>>,
        vectors: &Arc<Vectors<'bound>>,
    ) -> Result<Self> {
        let events = vectors.request(
            cmdq::VECTOR.into(),
            irq_name(&hca, "async", None)?,
            None,
            AsyncHandler::new(hca.clone()),
        )?;
        let mut live = Self {
            _registration: None,
            _quiet: Quiet(hca.clone()),
            completions: KVec::new(),
            events,
            hca: hca.clone(),
        };
        hca.cmd().start()?;
        await_state(binding, State::Enabled, || hca.state())?;
        live.events.handler().start()?;
        for n in 0..hca.comp_vectors() {
            let number = n + eq::FIRST_COMPLETION;
            let irq = vectors.request(
                number.into(),
                irq_name(&hca, "comp", Some(n))?,
                Some(n.into()),
                CompletionHandler::new(hca.clone(), number),
            )?;
            live.completions.push(irq, GFP_KERNEL)?;
        }
        // From here on the device has their memory, which `live` keeps until the device is quiet.
        for irq in &live.completions {
            irq.handler().start()?;
        }
        Ok(live)
    }

    fn register(&mut self, binding: Binding<'bound>, device: UnregisteredDevice<Qiao>) -> Result {
        let data = Data::new(self.hca.clone())?;
        let info = data.info();
        self._registration = Some(binding.register(device, info, data)?);
        Ok(())
    }
}

/// Names an interrupt, as `/proc/interrupts` shows it.
fn irq_name(hca: &Hca<'_>, what: &str, number: Option<u16>) -> Result<CString> {
    let function = hca.pdev().as_ref().name().to_str()?;
    match number {
        Some(n) => CString::try_from_fmt(fmt!("qiao-{what}{n}@pci:{function}")),
        None => CString::try_from_fmt(fmt!("qiao-{what}@pci:{function}")),
    }
}

/// Checks the size of a BAR.
fn check_bar(binding: Binding<'_>, bar: u32, min: usize) -> Result {
    let len = binding.device().resource_len(bar)?;
    if len < min as u64 {
        dev_err!(
            binding.device(),
            "BAR {bar} has {len:#x} bytes, at least {min:#x} are needed\n"
        );
        return Err(ENODEV);
    }
    Ok(())
}

fn map_control(binding: Binding<'_>) -> Result<Control<'_>> {
    check_bar(binding, bar::pci::BAR_CONTROL, bar::size::BAR_CONTROL_MIN)?;
    binding
        .device()
        .iomap_region_sized(bar::pci::BAR_CONTROL, c"qiao/control")
}

fn map_doorbells(binding: Binding<'_>) -> Result<pci::Bar<'_>> {
    check_bar(binding, bar::pci::BAR_DOORBELL, bar::size::BAR_DOORBELL_MIN)?;
    binding
        .device()
        .iomap_region(bar::pci::BAR_DOORBELL, c"qiao/doorbell")
}

/// Chooses how to operate the part.
fn identify(binding: Binding<'_>, control: &Control<'_>) -> Result<&'static dyn Hal> {
    hal::select(control).map_err(|refusal| {
        if let Refusal::Version { major, minor } = refusal {
            dev_err!(
                binding.device(),
                "interface version {major}.{minor} is not supported, {}.x is\n",
                bar::VERSION_MAJOR
            );
        }
        ENODEV
    })
}

/// Brings the device into its initial state.
fn reset(binding: Binding<'_>, hal: &dyn Hal, control: &Control<'_>) -> Result {
    hal.reset(control);
    await_state(binding, State::Ready, || hal.state(control))
}

/// Waits for a state that the device was told to go to.
///
/// # Errors
///
/// `ENODEV` if the device is gone, `ETIMEDOUT` if it stays in another state.
fn await_state(binding: Binding<'_>, wanted: State, read: impl Fn() -> State) -> Result {
    let reached = read_poll_timeout(
        || Ok(read()),
        |&state| state == wanted || state == State::Absent,
        STATE_POLL,
        STATE_TIMEOUT,
    );
    match reached {
        Ok(State::Absent) => Err(ENODEV),
        Ok(_) => Ok(()),
        Err(e) => {
            let state = read();
            dev_err!(
                binding.device(),
                "device is in the state {state:?}, not {wanted:?}\n"
            );
            Err(e)
        }
    }
}

fn read_caps(binding: Binding<'_>, hal: &dyn Hal, control: &Control<'_>) -> Result<Caps> {
    // The core is silent about `ENODEV`: what the device is said to be wrong with stays one line.
    let caps = hal.caps(control).map_err(|_| {
        dev_err!(
            binding.device(),
            "capability block is not where it can be\n"
        );
        ENODEV
    })?;
    Caps::new(caps).map_err(|nonsense| {
        dev_err!(
            binding.device(),
            "capability block makes no sense: {} is {:#x}\n",
            nonsense.field,
            nonsense.value
        );
        ENODEV
    })
}

/// Allocates the vector of commands and events, and one for completions for each CPU, as far as
/// the device has them and event queues for them.
fn allocate_vectors<'bound>(binding: Binding<'bound>, caps: &Caps) -> Result<Arc<Vectors<'bound>>> {
    let first: u32 = eq::FIRST_COMPLETION.into();
    let cpus = kernel::cpu::nr_cpu_ids();
    let max = (first + cpus)
        .min(caps.num_vectors.get().into())
        .min(1 << caps.log_max_eq);
    Vectors::new(binding, first + 1, max)
}
