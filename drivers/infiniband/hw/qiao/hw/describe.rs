// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How the interface describes itself.
//!
//! Every structure, register and number of this crate is declared by one of the macros below. Each
//! declaration yields the Rust item that driver, provider and model use, and a constant table of
//! its fields. The C header for firmware teams is printed from these tables and `docs/interface.md`
//! is checked against them.

/// One field of a structure in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name; fields whose name starts with `rsvd` are reserved.
    pub name: &'static str,
    /// Offset in bytes from the start of the structure.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
    /// Meaning, unit and range.
    pub doc: &'static str,
}

impl Field {
    /// Returns whether the field must be zero.
    pub const fn is_reserved(&self) -> bool {
        let name = self.name.as_bytes();
        name.len() >= 4 && name[0] == b'r' && name[1] == b's' && name[2] == b'v' && name[3] == b'd'
    }
}

/// A structure of the interface.
pub trait Described: Sized {
    /// Name of the structure.
    const NAME: &'static str;
    /// All its fields, in order and without gaps.
    const FIELDS: &'static [Field];
}

/// Returns whether all reserved fields of `value` are zero, as the interface demands.
pub fn reserved_is_zero<T>(value: &T) -> bool
where
    T: Described + zerocopy::IntoBytes + zerocopy::Immutable,
{
    let bytes = value.as_bytes();
    T::FIELDS.iter().filter(|f| f.is_reserved()).all(|f| {
        bytes
            .get(f.offset..f.offset + f.size)
            .is_some_and(|b| b.iter().all(|&x| x == 0))
    })
}

/// One register of BAR0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Name.
    pub name: &'static str,
    /// Offset in bytes from the start of BAR0.
    pub offset: usize,
    /// Width in bytes, 4 or 8.
    pub size: usize,
    /// `ro`, `rw` or `wo`.
    pub access: &'static str,
    /// Meaning.
    pub doc: &'static str,
}

/// One named number: an enumerator, a flag or a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// Name.
    pub name: &'static str,
    /// Value.
    pub value: u64,
    /// Meaning.
    pub doc: &'static str,
}

/// A set of named numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Name of the set.
    pub name: &'static str,
    /// The numbers.
    pub numbers: &'static [Number],
}

/// Declares a little-endian structure without padding.
macro_rules! layout {
    (
        $(#[doc = $sdoc:literal])*
        pub struct $name:ident[$size:literal] {
            $( $(#[doc = $doc:literal])+ pub $field:ident: $ty:ty, )*
        }
    ) => {
        $(#[doc = $sdoc])*
        #[repr(C)]
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq,
            zerocopy_derive::FromBytes,
            zerocopy_derive::IntoBytes,
            zerocopy_derive::KnownLayout,
            zerocopy_derive::Immutable,
            zerocopy_derive::Unaligned,
        )]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $field: $ty, )*
        }

        const _: () = assert!(size_of::<$name>() == $size);

        impl $name {
            /// Returns the structure with all fields zero.
            #[inline]
            pub fn zeroed() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }

        impl $crate::describe::Described for $name {
            const NAME: &'static str = stringify!($name);
            const FIELDS: &'static [$crate::describe::Field] = &[
                $( $crate::describe::Field {
                    name: stringify!($field),
                    offset: core::mem::offset_of!($name, $field),
                    size: size_of::<$ty>(),
                    doc: concat!($($doc),+),
                }, )*
            ];
        }
    };
}

/// Declares an enumeration that travels as an unsigned integer.
macro_rules! numbers {
    (
        $(#[doc = $sdoc:literal])*
        pub enum $name:ident: $ty:ty {
            $( $(#[doc = $doc:literal])+ $variant:ident = $value:literal, )*
        }
    ) => {
        $(#[doc = $sdoc])*
        #[repr($ty)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $( $(#[doc = $doc])+ $variant = $value, )*
        }

        impl $name {
            /// The table of this enumeration.
            pub const NUMBERS: $crate::describe::Numbers = $crate::describe::Numbers {
                name: stringify!($name),
                numbers: &[ $( $crate::describe::Number {
                    name: stringify!($variant),
                    value: $value,
                    doc: concat!($($doc),+),
                }, )* ],
            };

            /// Returns the enumerator for `value`, if there is one.
            #[inline]
            pub const fn from_wire(value: $ty) -> Option<Self> {
                match value {
                    $( $value => Some(Self::$variant), )*
                    _ => None,
                }
            }

            /// Returns the value on the wire.
            #[inline]
            pub const fn to_wire(self) -> $ty {
                // CAST: The representation is `$ty`.
                self as $ty
            }
        }
    };
}

/// Declares a set of flags or limits in a module of its own.
macro_rules! constants {
    (
        $(#[doc = $sdoc:literal])*
        pub mod $name:ident: $ty:ty {
            $( $(#[doc = $doc:literal])+ $constant:ident = $value:expr, )*
        }
    ) => {
        $(#[doc = $sdoc])*
        pub mod $name {
            $( $(#[doc = $doc])+ pub const $constant: $ty = $value; )*

            /// The table of this set.
            pub const NUMBERS: $crate::describe::Numbers = $crate::describe::Numbers {
                name: stringify!($name),
                numbers: &[ $( $crate::describe::Number {
                    name: stringify!($constant),
                    // CAST: No constant of the interface is wider than 64 bits.
                    value: $constant as u64,
                    doc: concat!($($doc),+),
                }, )* ],
            };
        }
    };
}

pub(crate) use {constants, layout, numbers};
