//! Each program with each engine: the same promises, the same tests.

use kingtide_testkit::Scratch;
use std::time::Duration;

/// The tests of one engine's programs. A server is opened by `$server`, which takes the directory.
macro_rules! tests_of {
    ($engine:ident, $server:expr) => {
        mod $engine {
            use super::*;
            use kingtide_programs::$engine::{blobs, counter, index, pages, queue, series, server};

            fn scratch(program: &str) -> Scratch {
                Scratch::new(&format!("{}-{program}", stringify!($engine)))
            }

            #[test]
            fn a_queue_gives_each_job_to_one_worker_in_order() {
                let dir = scratch("queue");
                let queue = queue::Queue::open(&dir.0).unwrap();
                assert_eq!(queue.pop().unwrap(), None);
                for n in 0..100u32 {
                    queue.push(&n.to_le_bytes()).unwrap();
                }
                let taken: Vec<Vec<u32>> = std::thread::scope(|scope| {
                    let work = || {
                        let jobs = std::iter::from_fn(|| queue.pop().unwrap());
                        jobs.map(|job| u32::from_le_bytes(job.try_into().unwrap())).collect::<Vec<u32>>()
                    };
                    let workers = [scope.spawn(work), scope.spawn(work), scope.spawn(work)];
                    workers.into_iter().map(|worker| worker.join().unwrap()).collect()
                });
                assert!(taken.iter().all(|jobs| jobs.is_sorted()), "{taken:?}");
                let mut all = taken.concat();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..100));
                queue.push(b"next").unwrap();
                assert_eq!(queue.pop().unwrap().unwrap(), b"next");
            }

            #[test]
            fn readings_of_a_series_disappear() {
                let (dir, brief) = (scratch("series"), scratch("brief"));
                let series = series::Series::open(&dir.0, Duration::from_secs(3600)).unwrap();
                for time in [3, 1, 2, 9] {
                    series.record(7, time, time as f64 / 2.0).unwrap();
                }
                series.record(8, 2, 0.0).unwrap();
                assert_eq!(series.read(7, 1, 9).unwrap(), [(1, 0.5), (2, 1.0), (3, 1.5)]);
                let series = series::Series::open(&brief.0, Duration::from_millis(1)).unwrap();
                series.record(7, 1, 1.0).unwrap();
                while !series.read(7, 0, 9).unwrap().is_empty() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }

            #[test]
            fn an_index_agrees_with_the_users() {
                let dir = scratch("index");
                let users = index::Users::open(&dir.0).unwrap();
                assert_eq!(users.find("ann@here").unwrap(), None);
                assert!(users.save(1, "ann@here").unwrap());
                assert!(!users.save(2, "ann@here").unwrap());
                assert!(users.save(2, "ben@here").unwrap());
                assert!(users.save(1, "ann@there").unwrap());
                assert!(users.save(2, "ann@here").unwrap(), "an address that was given up is free");
                assert!(users.save(2, "ann@here").unwrap());
                let found = ["ann@here", "ann@there", "ben@here"].map(|address| users.find(address).unwrap());
                assert_eq!(found, [Some(2), Some(1), None]);
            }

            #[test]
            fn counters_lose_no_increment_of_eight_threads() {
                let dir = scratch("counter");
                let counters = counter::Counters::open(&dir.0).unwrap();
                std::thread::scope(|scope| {
                    for n in 1..=8 {
                        let counters = &counters;
                        scope.spawn(move || (0..20).for_each(|_| counters.add("visits", n).unwrap()));
                    }
                });
                assert_eq!((counters.get("visits").unwrap(), counters.get("none").unwrap()), (20 * 36, 0));
            }

            #[test]
            fn pages_go_back() {
                let dir = scratch("pages");
                let messages = pages::Messages::open(&dir.0).unwrap();
                for time in 0..25 {
                    messages.post(time, &format!("message {time}")).unwrap();
                }
                let (mut before, mut sizes, mut seen) = (None, Vec::new(), Vec::new());
                loop {
                    let page = messages.page(before, 10).unwrap();
                    let Some((last, text)) = page.last() else { break };
                    assert_eq!(*text, format!("message {last}"));
                    before = Some(*last);
                    sizes.push(page.len());
                    seen.extend(page.into_iter().map(|(time, _)| time));
                }
                assert!(sizes == [10, 10, 5] && seen.into_iter().eq((0..25).rev()));
            }

            #[test]
            fn blobs_are_read_in_parts() {
                let dir = scratch("blobs");
                let blobs = blobs::Blobs::open(&dir.0).unwrap();
                let blob: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
                blobs.put("film", b"short").unwrap();
                blobs.put("film", &blob).unwrap();
                let mut part = vec![0; 1000];
                for offset in [0, 1_234_567, 2_999_500, 3_000_000, 9_000_000] {
                    let n = blobs.read_at("film", offset, &mut part).unwrap().unwrap();
                    let expected = blob.get(offset as usize..).unwrap_or_default();
                    assert_eq!(part[..n], expected[..expected.len().min(1000)], "at {offset}");
                }
                assert_eq!(blobs.read_at("none", 0, &mut part).unwrap(), None);
            }

            #[test]
            fn a_server_answers() {
                let dir = scratch("server");
                let db = $server(&dir.0);
                super::converse(|listener| server::serve(db, listener));
            }
        }
    };
}

/// Runs a server, and two clients against it.
fn converse<F>(serve: impl FnOnce(tokio::net::TcpListener) -> F)
where
    F: Future<Output = std::io::Result<()>> + Send + 'static,
{
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_io().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener));
        let connect = async || BufReader::new(tokio::net::TcpStream::connect(address).await.unwrap());
        let (mut first, mut second) = (connect().await, connect().await);
        let ask = async |client: &mut BufReader<tokio::net::TcpStream>, line: &str| {
            client.write_all(format!("{line}\n").as_bytes()).await.unwrap();
            let mut answer = String::new();
            client.read_line(&mut answer).await.unwrap();
            answer
        };
        assert_eq!(ask(&mut first, "set a 1").await, "stored\n");
        assert_eq!(ask(&mut second, "get a").await, "value 1\n");
        assert_eq!(ask(&mut second, "set a a value with spaces").await, "stored\n");
        assert_eq!(ask(&mut first, "get a").await, "value a value with spaces\n");
        assert_eq!(ask(&mut first, "get b").await, "none\n");
        assert_eq!(ask(&mut first, "drop").await, "error: get KEY, or set KEY VALUE\n");
    });
}

tests_of!(with_kingtide, |dir: &std::path::Path| kingtide::AsyncDb::from(
    kingtide::Db::open(dir, kingtide::Options::default()).unwrap()
));

#[cfg(feature = "peers")]
tests_of!(with_fjall, |dir: &std::path::Path| {
    use kingtide_programs::fjall;
    let db = fjall::Database::builder(dir).open().unwrap();
    db.keyspace("entries", fjall::KeyspaceCreateOptions::default).unwrap()
});

#[cfg(feature = "peers")]
tests_of!(with_redb, |dir: &std::path::Path| {
    use kingtide_programs::redb;
    let db = redb::Database::create(dir.join("entries.redb")).unwrap();
    let txn = db.begin_write().unwrap();
    txn.open_table(kingtide_programs::with_redb::server::ENTRIES).unwrap(); // a reader would find no table
    txn.commit().unwrap();
    std::sync::Arc::new(db)
});

/// The page's table says how long the programs are, and none of Kingtide's is the longest.
#[test]
fn the_page_tells_the_programs_lengths() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../programs");
    let page = std::fs::read_to_string(root.join("../../docs/programs.md")).unwrap();
    let lines_of = |engine: &str, program: &str| {
        let text = std::fs::read_to_string(root.join(format!("src/{engine}/{program}.rs"))).unwrap();
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
    };
    for program in ["queue", "series", "index", "counter", "pages", "blobs", "server"] {
        let engines = ["with_kingtide", "with_fjall", "with_redb"];
        let [ours, fjall, redb] = engines.map(|engine| lines_of(engine, program));
        assert!(ours <= fjall.min(redb), "{program}: {ours} lines, {fjall} with fjall, {redb} with redb");
        let row = page.lines().find(|line| line.contains(&format!("/{program}.rs"))).unwrap();
        let cells = engines.map(|e| format!("| [{}](../crates/programs/src/{e}/{program}.rs) ", lines_of(e, program)));
        assert!(row.ends_with(&format!("{}|", cells.concat())), "{program}: {ours}, {fjall}, {redb}: {row}");
    }
}
