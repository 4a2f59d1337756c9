//! The suites: rows of names and of the arguments of `keybench micro`. Counts are those of the published suites that the rows
//! come from; `--scale` shrinks them.

/// A named list of tests.
pub struct Suite {
    /// As a user names it.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// The first arguments of all rows.
    pub common: &'static str,
    /// A test's name, then its arguments, a line each.
    pub rows: &'static str,
}

/// Every suite.
pub const SUITES: &[Suite] = &[
    Suite {
        name: "core",
        about: "this project's own rows: what results/README.md shows",
        common: "-t 2",
        rows: "
            put_seq_1000     -w write -p seq -o 2M -b 1000
            put_random_1000  -w write -o 2M -b 1000
            put_random_1     -w write -o 2M
            get_random       -w read -o 2M --reads 1M
            get_zipfian      -w read -p zipfian -o 2M --reads 1M
            seek_random      -w seek -o 2M --reads 1M
            seek_seq         -w seek -p seq -o 2M --reads 2M
            seek_zipfian     -w seek -p zipfian -o 2M --reads 1M
            range_100        -w range --range-size 100 -o 2M --reads 100K
            range_1000       -w range --range-size 1000 -o 2M --reads 20K
            iterate          -w iterate -o 2M
            put_4k_100       -w write -v 4096 -b 100 -o 300K
            get_4k           -w read -v 4096 --load-batch 100 -o 300K --reads 600K
            put_sync_2       -w write --sync -t 2 -o 50K
            put_sync_8       -w write --sync -t 8 -o 100K
            reopen_settled   -w read -o 2M --reads 100K --after-load reopen-settled
            reopen_killed    -w read -o 2M --reads 100K --after-load reopen-killed",
    },
    Suite {
        name: "total-cost",
        about: "what writes cost until compaction is idle: loads, overwrites, deletes, families; then reads of what they left",
        common: "-t 2 -o 4M --reads 10% --settle",
        rows: "
            load           --phases filluniquerandom,readrandom,rangerandom,readseq
            overwrite      --phases filluniquerandom,overwrite,overwrite,overwrite,readrandom,rangerandom,readseq
            delete_90      -b 100 --phases filluniquerandom,deletemost,readrandom,rangerandom,readseq
            range_delete   --phases filluniquerandom,deleteranges,readcovered,readrandom,rangerandom,readseq
            families_10    --families 10 --memtable-size 8M --phases fillfamilies,readfamilies
            families_1000  --families 1000 --memtable-size 256K --phases fillfamilies,readfamilies",
    },
    Suite {
        name: "transactions",
        about: "transactions of 1, 10 and 100 operations, 2 and 8 threads, low and high contention",
        common: "-o 300K --reads 400K",
        rows: "
            put_plain    -w write -o 400K
            put_txn      -w txn-write -o 400K --txn-size 1
            put_txn_10   -w txn-write -o 400K --txn-size 10
            put_txn_100  -w txn-write -o 400K --txn-size 100
            rmw_optimistic_low_t2_1     -w txn-rmw --txn-mode optimistic --txn-size 1 -t 2
            rmw_optimistic_low_t2_10    -w txn-rmw --txn-mode optimistic --txn-size 10 -t 2
            rmw_optimistic_low_t2_100   -w txn-rmw --txn-mode optimistic --txn-size 100 -t 2
            rmw_optimistic_high_t2_1    -w txn-rmw --txn-mode optimistic --txn-size 1 -t 2 --hot-keys 100
            rmw_optimistic_high_t2_10   -w txn-rmw --txn-mode optimistic --txn-size 10 -t 2 --hot-keys 100
            rmw_optimistic_high_t2_100  -w txn-rmw --txn-mode optimistic --txn-size 100 -t 2 --hot-keys 100
            rmw_optimistic_low_t8_1     -w txn-rmw --txn-mode optimistic --txn-size 1 -t 8
            rmw_optimistic_low_t8_10    -w txn-rmw --txn-mode optimistic --txn-size 10 -t 8
            rmw_optimistic_low_t8_100   -w txn-rmw --txn-mode optimistic --txn-size 100 -t 8
            rmw_optimistic_high_t8_1    -w txn-rmw --txn-mode optimistic --txn-size 1 -t 8 --hot-keys 100
            rmw_optimistic_high_t8_10   -w txn-rmw --txn-mode optimistic --txn-size 10 -t 8 --hot-keys 100
            rmw_optimistic_high_t8_100  -w txn-rmw --txn-mode optimistic --txn-size 100 -t 8 --hot-keys 100
            rmw_locking_low_t2_1     -w txn-rmw --txn-mode locking --txn-size 1 -t 2
            rmw_locking_low_t2_10    -w txn-rmw --txn-mode locking --txn-size 10 -t 2
            rmw_locking_low_t2_100   -w txn-rmw --txn-mode locking --txn-size 100 -t 2
            rmw_locking_high_t2_1    -w txn-rmw --txn-mode locking --txn-size 1 -t 2 --hot-keys 100
            rmw_locking_high_t2_10   -w txn-rmw --txn-mode locking --txn-size 10 -t 2 --hot-keys 100
            rmw_locking_high_t2_100  -w txn-rmw --txn-mode locking --txn-size 100 -t 2 --hot-keys 100
            rmw_locking_low_t8_1     -w txn-rmw --txn-mode locking --txn-size 1 -t 8
            rmw_locking_low_t8_10    -w txn-rmw --txn-mode locking --txn-size 10 -t 8
            rmw_locking_low_t8_100   -w txn-rmw --txn-mode locking --txn-size 100 -t 8
            rmw_locking_high_t8_1    -w txn-rmw --txn-mode locking --txn-size 1 -t 8 --hot-keys 100
            rmw_locking_high_t8_10   -w txn-rmw --txn-mode locking --txn-size 10 -t 8 --hot-keys 100",
    },
    Suite {
        name: "standard",
        about: "the published comparison's main list: writes, reads, mixes, deletes, sizes, seeks, ranges",
        common: "-t 8",
        rows: "
            write_seq         -w write -p seq -o 10M -b 1000
            write_random      -w write -o 10M -b 1000
            read_random       -w read -o 10M
            mixed_random      -w mixed -o 5M -b 1000
            write_zipfian     -w write -p zipfian -o 5M -b 1000
            mixed_zipfian     -w mixed -p zipfian -o 5M -b 1000
            delete_random     -w delete -o 5M -b 1000
            write_large       -w write -k 256 -v 4096 -o 1M -b 1000
            write_small       -w write -k 16 -v 64 -o 50M -b 1000
            write_batch_1     -w write -o 10M -b 1
            write_batch_10    -w write -o 10M -b 10
            write_batch_100   -w write -o 10M -b 100
            write_batch_10000 -w write -o 10M -b 10000
            delete_batch_1    -w delete -o 5M -b 1
            delete_batch_100  -w delete -o 5M -b 100
            seek_random       -w seek -o 5M
            seek_seq          -w seek -p seq -o 5M
            seek_zipfian      -w seek -p zipfian -o 5M
            range_random_100  -w range --range-size 100 -o 1M
            range_random_1000 -w range --range-size 1000 -o 500K
            range_seq_100     -w range -p seq --range-size 100 -o 1M",
    },
    Suite {
        name: "seek-range",
        about: "seeks and short and long ranges, random, in order and skewed",
        common: "-t 8",
        rows: "
            seek_random       -w seek -o 5M
            seek_seq          -w seek -p seq -o 5M
            seek_zipfian      -w seek -p zipfian -o 5M
            range_random_100  -w range --range-size 100 -o 1M
            range_random_1000 -w range --range-size 1000 -o 500K
            range_seq_100     -w range -p seq --range-size 100 -o 1M
            iterate           -w iterate -o 5M",
    },
    Suite {
        name: "large-values",
        about: "values of 4 KiB to 16 MiB: puts, gets, ranges",
        common: "-t 4",
        rows: "
            put_4k     -w write -v 4K -o 1M -b 100
            get_4k     -w read -v 4K -o 1M
            range_4k   -w range -v 4K -o 1M --reads 10K
            put_64k    -w write -v 64K -o 64K -b 10
            get_64k    -w read -v 64K -o 64K
            range_64k  -w range -v 64K -o 64K --reads 1K
            put_1m     -w write -v 1M -o 4K -b 1
            get_1m     -w read -v 1M -o 4K
            put_16m    -w write -v 16M -o 256 -b 1
            get_16m    -w read -v 16M -o 256",
    },
    Suite {
        name: "one-gig",
        about: "values of 1 GiB, half compressible, then not at all: needs about 10 GiB of memory and 30 GiB of disk",
        common: "-t 1 -v 1G -b 1 --load-batch 1 -o 10",
        rows: "
            put_1g    -w write
            get_1g    -w read
            range_1g  -w range --range-size 5 --reads 4
            put_1g_noise  -w write --value-entropy 1
            get_1g_noise  -w read --value-entropy 1",
    },
    Suite {
        name: "batch-scaling",
        about: "puts and deletes in batches of 1 to 10,000",
        common: "-t 8 -o 10M",
        rows: "
            write_batch_1      -w write -b 1
            write_batch_10     -w write -b 10
            write_batch_100    -w write -b 100
            write_batch_1000   -w write -b 1000
            write_batch_10000  -w write -b 10000
            delete_batch_1     -w delete -b 1
            delete_batch_100   -w delete -b 100
            delete_batch_1000  -w delete -b 1000
            mget_batch_1       -w mget -b 1
            mget_batch_64      -w mget -b 64
            mget_batch_256     -w mget -b 256",
    },
    Suite {
        name: "value-sizes",
        about: "puts and gets of values of 64 B to 1 MiB, 256 MiB each; gets from 1 KiB on read more, so that a row lasts",
        common: "-t 4 -b 100",
        rows: "
            put_64    -w write -v 64 -o 4M
            get_64    -w read -v 64 -o 4M
            put_256   -w write -v 256 -o 1M
            get_256   -w read -v 256 -o 1M
            put_1k    -w write -v 1K -o 256K
            get_1k    -w read -v 1K -o 256K --reads 1M
            put_4k    -w write -v 4K -o 64K
            get_4k    -w read -v 4K -o 64K --reads 512K
            put_16k   -w write -v 16K -o 16K
            get_16k   -w read -v 16K -o 16K --reads 256K
            put_64k   -w write -v 64K -o 4K
            get_64k   -w read -v 64K -o 4K --reads 64K
            put_256k  -w write -v 256K -o 1K -b 10
            get_256k  -w read -v 256K -o 1K --load-batch 10 --reads 16K
            put_1m    -w write -v 1M -o 256 -b 1
            get_1m    -w read -v 1M -o 256 --load-batch 1 --reads 4K",
    },
    Suite {
        name: "deletes",
        about: "deletes in all orders, one by one and in batches",
        common: "-w delete -t 8 -o 5M",
        rows: "
            delete_random      -b 1
            delete_seq         -p seq -b 1
            delete_zipfian     -p zipfian -b 1
            delete_random_100  -b 100
            delete_random_1000 -b 1000
            delete_seq_1000    -p seq -b 1000",
    },
    Suite {
        name: "synced",
        about: "writes that survive a power cut, by threads and batch",
        common: "--sync",
        rows: "
            put_sync_t1        -w write -t 1 -o 25K
            put_sync_t4        -w write -t 4 -o 50K
            put_sync_t16       -w write -t 16 -o 100K
            put_sync_t4_b100   -w write -t 4 -b 100 -o 500K
            delete_sync_t4     -w delete -t 4 -o 50K
            mixed_sync_t4      -w mixed -t 4 -o 50K
            txn_sync_t4_10     -w txn-write --txn-size 10 -t 4 -o 100K",
    },
    Suite {
        name: "single-thread",
        about: "tests like those of the main list on one thread",
        common: "-t 1",
        rows: "
            write_seq         -w write -p seq -o 10M -b 1000
            write_random      -w write -o 10M -b 1000
            write_random_1    -w write -o 10M
            read_random       -w read -o 10M
            mixed_random      -w mixed -o 5M -b 1000
            delete_random     -w delete -o 5M -b 1000
            seek_random       -w seek -o 5M
            range_random_100  -w range --range-size 100 -o 1M
            iterate           -w iterate -o 5M",
    },
    Suite {
        name: "large-scale",
        about: "most of the main list with four times the operations on 16 threads: hours, and tens of GiB of disk",
        common: "-t 16",
        rows: "
            write_seq         -w write -p seq -o 40M -b 1000
            write_random      -w write -o 40M -b 1000
            read_random       -w read -o 40M
            mixed_random      -w mixed -o 20M -b 1000
            write_zipfian     -w write -p zipfian -o 20M -b 1000
            mixed_zipfian     -w mixed -p zipfian -o 20M -b 1000
            delete_random     -w delete -o 20M -b 1000
            write_large       -w write -k 256 -v 4096 -o 4M -b 1000
            write_small       -w write -k 16 -v 64 -o 200M -b 1000
            write_batch_1     -w write -o 40M -b 1
            write_batch_100   -w write -o 40M -b 100
            delete_batch_1    -w delete -o 20M -b 1
            seek_random       -w seek -o 20M
            seek_seq          -w seek -p seq -o 20M
            seek_zipfian      -w seek -p zipfian -o 20M
            range_random_100  -w range --range-size 100 -o 4M
            range_random_1000 -w range --range-size 1000 -o 2M
            range_seq_100     -w range -p seq --range-size 100 -o 4M",
    },
    Suite {
        name: "no-filters",
        about: "reads without filters: every table that may hold a key is searched",
        common: "-t 8 --bloom-fp 0",
        rows: "
            write_random      -w write -o 10M -b 1000
            read_random       -w read -o 10M
            read_zipfian      -w read -p zipfian -o 10M
            read_missing      -o 10M --phases filluniquerandom,readmissing
            mixed_random      -w mixed -o 5M -b 1000
            seek_random       -w seek -o 5M
            range_random_100  -w range --range-size 100 -o 1M",
    },
    Suite {
        name: "allocation",
        about: "what allocators differ in: run it under each (LD_PRELOAD), and compare with suite --versions",
        common: "-o 5M",
        rows: "
            write_t1_1        -w write -t 1 -b 1
            write_t1_1000     -w write -t 1 -b 1000
            write_t4_1        -w write -t 4 -b 1
            write_t4_1000     -w write -t 4 -b 1000
            write_t8_1        -w write -t 8 -b 1
            write_t8_1000     -w write -t 8 -b 1000
            write_t16_1       -w write -t 16 -b 1
            write_t16_1000    -w write -t 16 -b 1000
            read_t8           -w read -t 8
            mixed_t8          -w mixed -t 8 -b 100
            write_large_t8    -w write -t 8 -v 4096 -o 500K -b 10
            range_t8          -w range -t 8 --range-size 100 --reads 200K",
    },
    Suite {
        name: "larger-than-memory",
        about: "a data set of twice this machine's memory (scale 1), reads that must go to the disk",
        common: "-t 8 --memtable-size 128M --block-cache-size QUARTER -o TWICE --load-batch 10000",
        rows: "
            ingest            -w write -p seq -b 10000
            read_random       -w read --reads 10%
            read_zipfian      -w read -p zipfian --reads 10%
            seek_random       -w seek --reads 10%
            range_random_100  -w range --range-size 100 --reads 1%
            mixed_random      -w mixed -b 1000",
    },
];
