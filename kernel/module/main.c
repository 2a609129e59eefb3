// SPDX-License-Identifier: MIT OR Apache-2.0
/* fairq.ko: weighted fair sharing of fast drives between cgroups. See ../README.md. */
#include <linux/module.h>

#include "fairq.h"

static int __init fairq_init(void)
{
	int error = fairq_register_groups();

	if (error)
		return error;
	error = fairq_register_elevators();
	if (error)
		fairq_unregister_groups();
	return error;
}

static void __exit fairq_exit(void)
{
	fairq_unregister_elevators();
	fairq_unregister_groups();
}

module_init(fairq_init);
module_exit(fairq_exit);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_AUTHOR("The fairq authors");
MODULE_DESCRIPTION("Weighted fair sharing of fast drives between cgroups");
/*
 * A name that is written to queue/scheduler loads the module; the schedulers themselves are in
 * ../core/src/engine.rs.
 */
MODULE_ALIAS("mqfq-iosched");
MODULE_ALIAS("mqfq-serial-iosched");
MODULE_ALIAS("sfqd-iosched");
MODULE_ALIAS("kyber-fair-iosched");
MODULE_ALIAS("d2fq-iosched");
MODULE_ALIAS("fairq-cfq-iosched");
MODULE_ALIAS("fairq-bfq-iosched");
MODULE_ALIAS("flashfq-iosched");
MODULE_ALIAS("fiops-iosched");
MODULE_ALIAS("nass-cfq-iosched");
MODULE_ALIAS("nass-bfq-iosched");
MODULE_ALIAS("nass-flashfq-iosched");
MODULE_ALIAS("nass-fiops-iosched");
