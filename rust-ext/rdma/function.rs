// SPDX-License-Identifier: GPL-2.0

//! RDMA devices that are PCI functions.

use super::{
    device::Registration,
    DeviceHandle,
    DeviceInfo,
    Driver,
    UnregisteredDevice, //
};
use core::marker::PhantomData;
use kernel::{
    device::Core,
    pci,
    prelude::*, //
};

/// A driver of PCI functions each of which is an RDMA device.
///
/// Its [`PciAdapter`] is what the driver core gets. A function that is bound has a
/// [`Hca`](Self::Hca) and, in front of that, a registered device: probing always makes both, and
/// unbinding takes the device away before the `Hca` goes. The driver holds neither by value, so it
/// can not leak the registration, which would let the core call into what is gone.
pub trait PciDriver: Sized + Send + Sync + 'static {
    /// What drives the function: its BARs, interrupts, queues and tables.
    type Hca<'bound>: Send + Sync + 'bound;

    /// The operations of the RDMA device.
    type Rdma: Driver;

    /// The functions that the driver is for.
    const ID_TABLE: pci::IdTable<()>;

    /// Brings the function up to where commands can be executed.
    ///
    /// `events` is for what the function reports about itself and its ports.
    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        events: DeviceHandle,
    ) -> impl PinInit<Self::Hca<'bound>, Error> + 'bound;

    /// Returns what the registration of the device says.
    fn info(hca: &Self::Hca<'_>) -> DeviceInfo;

    /// Returns what operations of the device get.
    fn data<'bound>(hca: &'bound Self::Hca<'bound>) -> <Self::Rdma as Driver>::Data<'bound>;

    /// Called before the device is unregistered, which destroys all objects.
    ///
    /// A function that has left the bus must be noticed here or by commands on their own, so that
    /// they fail at once.
    fn unbind(hca: &Self::Hca<'_>);
}

/// A bound function.
#[pin_data]
pub struct Function<'bound, T: PciDriver> {
    // Dropped in this order: until the device is unregistered, its operations use the `Hca`.
    registration: Registration<'bound, T::Rdma>,
    #[pin]
    hca: T::Hca<'bound>,
}

impl<'bound, T: PciDriver> Function<'bound, T> {
    /// Returns what drives the function.
    pub fn hca(&self) -> &T::Hca<'bound> {
        &self.hca
    }
}

/// Makes a driver of the driver core from a [`PciDriver`].
pub struct PciAdapter<T: PciDriver>(PhantomData<T>);

impl<T: PciDriver> pci::Driver for PciAdapter<T> {
    type IdInfo = ();
    type Data<'bound> = Function<'bound, T>;
    const ID_TABLE: pci::IdTable<Self::IdInfo> = T::ID_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: Option<&'bound Self::IdInfo>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            let dev = UnregisteredDevice::<T::Rdma>::new()?;
            let events = dev.handle();
            Ok(try_pin_init!(Function {
                hca <- T::probe(pdev, events),
                registration: {
                    // SAFETY: `hca` is initialised (fields are in the order of this expression),
                    // pinned, and dropped after `registration`, be it by a failure of this
                    // initializer or with the whole. The driver core drops that before `'bound`
                    // ends.
                    let hca: &'bound T::Hca<'bound> =
                        unsafe { &*core::ptr::from_ref(hca.as_ref().get_ref()) };
                    // SAFETY: The registration is a field of `Function`, of which nobody but
                    // `PciAdapter` makes one, for the driver core, which drops it before `'bound`
                    // ends.
                    unsafe {
                        Registration::new(
                            pdev.as_ref(),
                            dev,
                            T::info(hca),
                            Ok::<_, Error>(T::data(hca)),
                        )
                    }?
                },
            }))
        })
    }

    fn unbind<'bound>(_pdev: &'bound pci::Device<Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        T::unbind(this.hca());
    }
}
