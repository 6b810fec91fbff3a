// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The C header. Multi-byte fields are little-endian; the header uses fixed-width types and asserts
//! every size and offset.

use qiao_hw::describe::Field;
use qiao_hw::{bar, catalogue};
use std::fmt::Write;

/// Returns the header.
pub fn header() -> String {
    let mut out = String::from(
        "/* SPDX-License-Identifier: GPL-2.0 OR MIT */\n\
         /* Printed by qiao-interface from drivers/infiniband/hw/qiao/hw; do not edit. */\n\
         #ifndef QIAO_HW_H\n#define QIAO_HW_H\n\n\
         #include <stddef.h>\n#include <stdint.h>\n\n\
         /* All multi-byte fields are little-endian. */\n\n",
    );
    define(&mut out, "QIAO_MAGIC", u64::from(bar::MAGIC));
    define(&mut out, "QIAO_VERSION", u64::from(bar::version()));
    out.push('\n');
    for r in bar::REGISTERS {
        define(&mut out, &format!("QIAO_REG_{}", r.name), r.offset as u64);
    }
    for set in catalogue::NUMBERS {
        out.push('\n');
        for n in set.numbers {
            let name = format!("QIAO_{}_{}", prefix(set.name), upper(n.name));
            define(&mut out, &name, n.value);
        }
    }
    for s in catalogue::STRUCTURES {
        let name = format!("qiao_{}", lower(s.name));
        let _ = write!(out, "\nstruct {name} {{\n");
        for f in s.fields {
            let _ = writeln!(out, "\t{};", declaration(f));
        }
        let _ = write!(
            out,
            "}};\n_Static_assert(sizeof(struct {name}) == {}, \"size\");\n",
            s.size
        );
        for f in s.fields {
            let _ = writeln!(
                out,
                "_Static_assert(offsetof(struct {name}, {}) == {}, \"offset\");",
                f.name, f.offset
            );
        }
    }
    out.push_str("\n#endif /* QIAO_HW_H */\n");
    out
}

/// The bits of a register are named after it, so that they differ from enumerations of a like name.
fn prefix(set: &str) -> String {
    let name = upper(set);
    let of_register = set.starts_with(char::is_lowercase);
    if of_register && bar::REGISTERS.iter().any(|r| r.name == name) {
        return format!("REG_{name}");
    }
    name
}

fn define(out: &mut String, name: &str, value: u64) {
    let suffix = if value > u64::from(u32::MAX) {
        "ULL"
    } else {
        "U"
    };
    let _ = writeln!(out, "#define {name} {value:#x}{suffix}");
}

/// A field as C has it: an integer where the layout aligns one, else an array. Nested structures are
/// arrays of bytes here, so that the header has no order of its own.
fn declaration(f: &Field) -> String {
    let bits = match f.size {
        1 | 2 | 4 | 8 if f.offset % f.size == 0 => f.size * 8,
        n if n % 8 == 0 && f.offset % 8 == 0 => return format!("uint64_t {}[{}]", f.name, n / 8),
        n => return format!("uint8_t {}[{n}]", f.name),
    };
    format!("uint{bits}_t {}", f.name)
}

fn upper(name: &str) -> String {
    lower(name).to_uppercase()
}

/// `CreateCq` as `create_cq`.
fn lower(name: &str) -> String {
    let mut out = String::new();
    let mut before_lower = false;
    for c in name.chars() {
        if c.is_uppercase() && before_lower {
            out.push('_');
        }
        before_lower = c.is_lowercase() || c.is_ascii_digit();
        out.extend(c.to_lowercase());
    }
    out
}
