// SPDX-License-Identifier: GPL-2.0

#include <linux/cpumask.h>
#include <linux/device.h>
#include <linux/interrupt.h>

int rust_ext_irq_set_affinity_and_hint(unsigned int irq,
				       const struct cpumask *m)
{
	return irq_set_affinity_and_hint(irq, m);
}

int rust_ext_irq_update_affinity_hint(unsigned int irq, const struct cpumask *m)
{
	return irq_update_affinity_hint(irq, m);
}

const struct cpumask *rust_ext_cpumask_of(unsigned int cpu)
{
	return cpumask_of(cpu);
}

int rust_ext_dev_to_node(struct device *dev)
{
	return dev_to_node(dev);
}
