// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds in a guest's console log what must never be there.

use std::sync::LazyLock;

use regex::Regex;

/// Lines shown after the one that was found: enough for the registers and the first frames of a trace.
const LINES_OF_CONTEXT: usize = 40;

/// What the kernel prints when something went wrong that no test may cause. Where the text is one that user space could also
/// print, it is anchored to the kernel's time stamp.
static ALARMS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"WARNING: |\bBUG: |kernel BUG at |\bOops\b|Kernel panic|general protection fault|",
        r"unable to handle (?:kernel|page fault)|Unable to handle kernel|",
        r"blocked for more than \d+ seconds|\bhung task\b|soft lockup|hard LOCKUP|detected stall|self-detected stall|",
        r"\bKASAN\b|\bKFENCE\b|\bKCSAN\b|\bUBSAN\b|\bkmemleak: |refcount_t: |",
        r"possible recursive locking|circular locking dependency|inconsistent lock state|suspicious RCU usage|",
        r"sleeping function called from invalid context|scheduling while atomic|bad unlock balance|",
        r"held lock freed|lock held when returning|trying to register non-static key|",
        // A slab whose red zone or poison was overwritten, and checks that had to end: without them nothing would be found.
        r"\bBUG \S+ \((?:Not t|T)ainted|ODEBUG|turning off the locking correctness validator|dma-debug disabled|",
        r"rust_kernel: panicked|DMA-API: |list_(?:add|del) corruption|Bad page state|Bad rss-counter|",
        r"nobody cared|qiao-agent: fatal",
    ))
    .expect("the pattern is a constant")
});

/// Messages that match an alarm and come from the emulated machine, not from anything under test.
static HARMLESS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        // Software emulation on a busy host lets a vCPU wait for its turn; the kernel then distrusts its clock.
        r"clocksource: .*(?:[Ww]atchdog|unstable)|",
        // The checks of the debug kernel introduce themselves.
        r"kmemleak: (?:Kernel memory leak detector initialized|Automatic memory scanning)|",
        r"DMA-API: (?:preallocated|debugging enabled|dma_debug_entry pool grown)",
    ))
    .expect("the pattern is a constant")
});

/// The first alarm of a console log with the lines that follow it, if there is one.
pub fn first_alarm(log: &str) -> Option<String> {
    let lines: Vec<&str> = log.lines().collect();
    let first = lines
        .iter()
        .position(|line| ALARMS.is_match(line) && !HARMLESS.is_match(line))?;
    let end = lines.len().min(first + LINES_OF_CONTEXT);
    Some(lines[first..end].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usual_boot_is_quiet() {
        let log = "[    0.000000] Linux version 7.3.4+deb13-amd64\n\
                   [    0.101010] ACPI: PM: Registering ACPI NVS region\n\
                   [    1.5] clocksource: timekeeping watchdog on CPU0: Marking clocksource 'tsc' as unstable\n\
                   [    2.0] qiao_hello: loaded with [1, 2, 3]\n\
                   [    2.1] random: crng init done\n\
                   [    2.1] DMA-API: preallocated 65536 debug entries\n\
                   [    2.1] kmemleak: Automatic memory scanning thread started\n\
                   [    2.2] debug: BUGGY is no alarm\n";
        assert_eq!(first_alarm(log), None);
    }

    #[test]
    fn each_kind_of_alarm_is_found() {
        let alarms = [
            "[    5.1] WARNING: CPU: 0 PID: 1 at kernel/softirq.c:300 __local_bh_enable_ip",
            "[    5.1] WARNING: possible circular locking dependency detected",
            "[    5.1] BUG: kernel NULL pointer dereference, address: 0000000000000008",
            "[    5.1] Oops: Oops: 0000 [#1] SMP NOPTI",
            "[    5.1] kernel BUG at mm/slub.c:4000!",
            "[  245.1] INFO: task modprobe:123 blocked for more than 120 seconds.",
            "[   30.0] watchdog: BUG: soft lockup - CPU#0 stuck for 26s!",
            "[    9.9] BUG: KASAN: slab-use-after-free in qiao_poll",
            "[    9.9] refcount_t: underflow; use-after-free.",
            "[    9.9] rust_kernel: panicked at drivers/qiao/cq.rs:10:5:",
            "[    9.9] rcu: INFO: rcu_preempt self-detected stall on CPU",
            "[    9.9] irq 24: nobody cared (try booting with the \"irqpoll\" option)",
            "[    9.9] Kernel panic - not syncing: Attempted to kill init!",
            "[    9.9] UBSAN: array-index-out-of-bounds in net/core.c:1:2",
            "[    9.9] kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)",
            "[    9.9] BUG kmalloc-64 (Tainted: G           O       ): Poison overwritten",
            "[    9.9] DMA-API: cacheline tracking ENOMEM, dma-debug disabled",
            "[    9.9] ODEBUG: Out of memory. ODEBUG disabled",
            "qiao-agent: fatal: mounting erofs",
        ];
        for alarm in alarms {
            let log = format!("[    1.0] before\n{alarm}\n[    6.0] after\n");
            let found = first_alarm(&log).unwrap_or_else(|| panic!("not found: {alarm}"));
            assert!(found.starts_with(alarm));
            assert!(found.ends_with("after"));
        }
    }

    #[test]
    fn the_context_is_bounded() {
        let log = format!("WARNING: x\n{}", "frame\n".repeat(1000));
        let found = first_alarm(&log).expect("an alarm");
        assert_eq!(found.lines().count(), LINES_OF_CONTEXT);
    }
}
