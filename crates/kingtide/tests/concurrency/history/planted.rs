//! The checker finds what is planted, and nothing in histories that are right.

use super::anomaly::{Anomaly, Report};
use super::checker::check;
use super::notation::{Place, parse};
use super::recorded::{History, Op, Outcome, OwnWrites, Txn, Value};
use super::reference::{Plan, generate};
use kingtide::Isolation;
use kingtide_base::rng::Rng;

fn plan(levels: &[Isolation], txns: usize, seed: u64) -> Plan {
    Plan { levels: levels.to_vec(), processes: 6, txns, registers: 40, seed }
}

/// A reference history passes at its level, and one of a weaker level fails at a stronger one for its reason.
#[test]
fn reference_histories_show_exactly_what_their_level_allows() {
    use Anomaly::*;
    let seed = super::seed();
    let reasons = [
        (Isolation::ReadUncommitted, Isolation::ReadCommitted, AbortedRead),
        (Isolation::ReadCommitted, Isolation::RepeatableRead, Fractured),
        (Isolation::RepeatableRead, Isolation::Snapshot, LostUpdate),
        (Isolation::Snapshot, Isolation::Serializable, WriteSkew),
    ];
    for round in 0..10 {
        let seed = seed + round;
        for level in Isolation::ALL {
            let history = generate(&plan(&[level], 3000, seed));
            let report = check(&history);
            assert!(report.is_clean(), "seed {seed} {level}: {report}");
        }
        let mixed = check(&generate(&plan(&Isolation::ALL, 3000, seed)));
        assert!(mixed.is_clean(), "seed {seed} mixed: {mixed}");
        for (weak, strong, reason) in reasons {
            let report = check(&generate(&plan(&[weak], 3000, seed)).at(strong));
            assert!(report.has(reason), "seed {seed}: {weak} as {strong} should show {reason:?}: {report}");
        }
    }
}

/// A history with one anomaly.
struct Plant {
    anomaly: Anomaly,
    text: &'static str,
    /// What else may be said of it.
    also: &'static [Anomaly],
}

const fn plant(anomaly: Anomaly, text: &'static str, also: &'static [Anomaly]) -> Plant {
    Plant { anomaly, text, also }
}

const PLANTS: &[Plant] = {
    use Anomaly::*;
    &[
        plant(Garbage, "b1 r1x9 c1", &[]),
        plant(Garbage, "b1 w1y1 c1 b2 r2x1 c2", &[]),
        plant(Garbage, "b1 w1x1 w1z2 c1 b2 p2x-z=x1,z2 c2", &[]),
        plant(LostWrite, "b1 w1x1 c1 fx0", &[]),
        plant(LostWrite, "b1 w1x1 c1 b2 w2x2 c2 fx1", &[]),
        plant(LostWrite, "b1 w1x1 c1 b2 w2x0 c2 fx1", &[]),
        plant(LostWrite, "b1 a1l1 c1 b2 a2l2 c2 Fl=2", &[]),
        plant(LostWrite, "b1 a1l1 c1 Fl=", &[]),
        plant(Duplicate, "b1 a1l1 c1 Fl=1,1", &[]),
        plant(Duplicate, "b1 a1l1 c1 b2 a2l2 c2 b3 l3l=1,1 c3", &[IncompatibleOrder]),
        plant(DirtyWrite, "b1 b2 a1l1 a2l2 a2m3 a1m4 c1 c2 Fl=1,2 Fm=3,4", &[SequenceDisagrees]),
        plant(DirtyWrite, "b1 b2 a1l1 a2l2 a1l3 c1 c2 Fl=1,2,3", &[SequenceDisagrees]),
        plant(AbortedRead, "b1 w1x1 x1 b2 r2x1 c2", &[]),
        plant(AbortedRead, "b1 w1x1 b2 r2x1 c2 x1", &[]),
        plant(AbortedRead, "b1 a1l1 b2 l2l=1 c2 x1", &[]),
        plant(AbortedRead, "b1 w1y2 w1x1 k1@1 c1 b2 r2x1 c2", &[]),
        plant(AbortedRead, "b1 w1x1 x1 b2 p2w-z=x1 c2", &[]),
        plant(IntermediateRead, "b1 w1x1 b2 r2x1 c2 w1x2 c1", &[]),
        plant(IntermediateRead, "b1 a1l1 b2 l2l=1 c2 a1l2 c1", &[CircularFlow]),
        plant(CircularFlow, "b1 b2 w1x1 w2y2 r1y2 r2x1 c1 c2", &[SequenceDisagrees]),
        plant(CircularFlow, "b1 r1x1 c1 b2 w2x1 c2", &[]),
        plant(CircularFlow, "b1 b2 b3 w1x1 r1z3 r2x1 w2y2 r3y2 w3z3 c1 c2 c3", &[SequenceDisagrees]),
        plant(Internal, "b1 w1x1 r1x0 c1", &[]),
        plant(Internal, "b1 w1x0 c1 b2 w2x2 c2 b3 w3x0 r3x2 c3", &[]),
        plant(Internal, "b1 w1x1 p1w-z= c1", &[]),
        plant(Internal, "b1 l1l= a1l1 l1l= c1", &[]),
        plant(Internal, "b1 a1l1 c1 b2 l2l=1 a2l2 l2l=2 c2", &[]),
        plant(IncompatibleOrder, "b1 a1l1 c1 b2 a2l2 c2 b3 l3l=1,2 c3 b4 l4l=2 c4", &[]),
        plant(SequenceDisagrees, "b1 a1l1 c1 b2 a2l2 c2 b3 l3l=2,1 c3", &[CircularFlow, DirtyWrite]),
        plant(SequenceDisagrees, "b1 b2 w2x2 r1x2 w1x1 w1y3 c1 c2", &[CircularFlow]),
        plant(SequenceDisagrees, "b1 b2 w2x1 r1x1 w1y2 c1 c2", &[]),
        plant(StaleRead, "b1 w1x1 c1 b2 r2x0 c2", &[SingleAnti]),
        plant(StaleRead, "b1 w1x1 c1 b2 w2x2 c2 b3 p3w-z=x1 c3", &[]),
        plant(StaleRead, "b1 a1l1 c1 b2 a2l2 c2 b3 l3l=1 c3", &[]),
        plant(NonRepeatable, "b1 r1x0 b2 w2x1 c2 r1x1 c1", &[Fractured, SingleAnti]),
        plant(NonRepeatable, "b1 l1l= b2 a2l1 c2 l1l=1 c1", &[Fractured, SingleAnti]),
        plant(Fractured, "b1 r1x0 b2 w2x1 w2y2 c2 r1y2 c1", &[SingleAnti]),
        plant(Fractured, "b1 w1x1 w1y2 c1 b3 b2 w2x3 w2y4 c2 r3x3 p3y-z=y2 c3", &[SingleAnti]),
        plant(WrongSnapshot, "b1 b2 w2x1 c2 r1x1 c1", &[]),
        plant(WrongSnapshot, "b1 w1x1 c1 b2 b3 w3x0 c3 r2x0 c2", &[]),
        plant(LostUpdate, "b1 b2 r1x0 r2x0 w1x1 c1 w2x2 c2", &[ConcurrentWrites, SingleAnti]),
        plant(LostUpdate, "b1 b2 l1l= l2l= a1l1 c1 a2l2 c2 Fl=1,2", &[ConcurrentWrites, SingleAnti]),
        plant(ConcurrentWrites, "b1 b2 w1x1 c1 w2x2 c2", &[]),
        plant(ConcurrentWrites, "b1 w1x1 c1 b2 b3 w2x0 c2 w3x3 c3", &[]),
        plant(SingleAnti, "b1 r1x0 b2 w2x1 w2y2 c2 r1y2 w1z3 c1", &[Fractured]),
        plant(NonadjacentAnti, "b1 b2 w1x1 w2y2 b3 b4 c1 c2 r3x1 r3y0 r4x0 r4y2 c3 c4", &[Fractured, WrongSnapshot]),
        plant(WriteSkew, "b1 b2 r1x0 r1y0 r2x0 r2y0 w1x1 w2y2 c1 c2", &[NotSerial]),
        plant(WriteSkew, "b2 r2x0 r2y0 b1 r1y0 w1y1 c1 b3 r3x0 r3y1 c3 w2x2 c2", &[NotSerial]),
        plant(Phantom, "b1 b2 p1a-d= p2w-z= w1x1 w2b2 c1 c2", &[NotSerial]),
        plant(Phantom, "b1 w1x1 w1y2 c1 b2 b3 p2w-z=x1,y2 p3w-z=x1,y2 w2w3 w3v4 r3v4 r2v0 c2 c3", &[NotSerial]),
        plant(NotSerial, "b1 b2 r1x0 w2x1 c2 w1y2 c1", &[]),
        plant(NotSerial, "b1 b2 p1w-z= w2x1 c2 w1a2 c1", &[]),
    ]
};

fn judge(plant: &Plant, report: &Report, place: &str) {
    assert!(report.has(plant.anomaly), "{place} {}: {:?} is not found: {report}", plant.text, plant.anomaly);
    let more = report.counts.keys().find(|a| **a != plant.anomaly && !plant.also.contains(a));
    assert!(more.is_none(), "{place} {}: {more:?} besides {:?}: {report}", plant.text, plant.anomaly);
}

#[test]
fn each_anomaly_is_found_and_named() {
    for plant in PLANTS {
        let level = plant.anomaly.forbidden_from();
        judge(plant, &check(&parse(plant.text, level, Place::default())), level.name());
    }
}

/// What a level allows is not held against it.
#[test]
fn each_anomaly_is_allowed_below_its_level() {
    // Orders of versions that contradict each other are not promised, and a snapshot is torn for any cycle there.
    let below = |p: &&Plant| {
        let level = p.anomaly.forbidden_from();
        level > Isolation::ReadUncommitted && p.anomaly != Anomaly::SequenceDisagrees
    };
    for plant in PLANTS.iter().filter(below) {
        let level = Isolation::ALL[plant.anomaly.forbidden_from() as usize - 1];
        let report = check(&parse(plant.text, level, Place::default()));
        let torn = plant.also.contains(&Anomaly::Fractured) && level == Isolation::RepeatableRead;
        assert!(report.is_clean() || torn, "{level} {}: {report}", plant.text);
    }
}

/// Reads with an update in mind are protected from read committed on.
#[test]
fn updates_under_protection_are_not_lost() {
    for level in &Isolation::ALL[1..] {
        for text in ["b1 b2 u1x0 u2x0 w1x1 c1 w2x2 c2", "b1 w1x1 c1 b2 b3 u3x1 w2x0 c2 w3x3 c3"] {
            let report = check(&parse(text, *level, Place::default()));
            assert!(report.has(Anomaly::LostUpdate), "{level} {text}: {report}");
        }
    }
}

/// Room for others between any two events and sequence numbers.
const STRETCH: u64 = 1000;

fn stretch(history: &mut History) {
    for txn in &mut history.txns {
        txn.begin *= STRETCH;
        txn.end *= STRETCH;
        txn.snapshot = txn.snapshot.map(|s| s * STRETCH);
        if let Outcome::Committed(seq) = &mut txn.outcome {
            *seq *= STRETCH;
        }
    }
}

/// A place in a stretched history that none of its transactions notices.
fn somewhere(history: &History, plan: &Plan, rng: &mut Rng) -> Place {
    let writes = |t: &&Txn| matches!(t.outcome, Outcome::Committed(_)) && !OwnWrites::of(t).all().is_empty();
    let all: Vec<&Txn> = history.txns.iter().filter(writes).collect();
    let txn = all[rng.below(all.len() as u64) as usize];
    let Outcome::Committed(seq) = txn.outcome else { unreachable!("filtered") };
    Place { key: plan.unused(), value: 1_000_000, event: txn.end, seq }
}

/// Each anomaly, in the middle of thousands of transactions that are right.
#[test]
fn each_anomaly_is_found_among_thousands() {
    let mut rng = Rng::new(super::seed());
    println!("seed {:?}", rng);
    for processes in [1, 6] {
        let plan = Plan { processes, ..plan(&[Isolation::Serializable], 3000, rng.next_u64()) };
        let mut base = generate(&plan);
        stretch(&mut base);
        assert!(check(&base).is_clean());
        for plant in PLANTS {
            let place = somewhere(&base, &plan, &mut rng);
            let planted = parse(plant.text, plant.anomaly.forbidden_from(), place);
            let mut history = base.at(plant.anomaly.forbidden_from());
            history.txns.extend(planted.txns);
            if let (Some(all), Some(more)) = (&mut history.finals, planted.finals) {
                all.lists.extend(more.lists);
                all.registers.extend(more.registers);
            }
            judge(plant, &check(&history), &format!("{processes} processes, plan seed {},", plan.seed));
        }
    }
}

/// One read changed in a serializable history, to another version of its key or a shorter list, is always noticed.
#[test]
fn a_changed_read_is_noticed() {
    let seed = super::seed();
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let plan = plan(&[Isolation::Serializable], 1500, seed);
    let base = generate(&plan);
    let mut values: Vec<Vec<Value>> = vec![Vec::new(); plan.registers as usize];
    for op in base.txns.iter().flat_map(|t| &t.ops) {
        if let Op::Write { key, value: Some(value) } = op {
            values[*key as usize].push(*value);
        }
    }
    let mut changed = 0;
    while changed < 300 {
        let mut history = base.clone();
        let no = rng.below(history.txns.len() as u64) as usize;
        let ops = &mut history.txns[no].ops;
        if ops.is_empty() {
            continue;
        }
        let at = rng.below(ops.len() as u64) as usize;
        let (before, lost) = (ops[at].clone(), rng.one_in(4));
        match &mut ops[at] {
            Op::Read { key, value, .. } => {
                let all = &values[*key as usize];
                *value = if lost || all.is_empty() { None } else { Some(all[rng.below(all.len() as u64) as usize]) };
            }
            Op::ReadList { list, .. } if !list.is_empty() => {
                *list = list[..rng.below(list.len() as u64) as usize].into();
            }
            Op::ReadRange { found, .. } if !found.is_empty() => {
                let mut fewer = found.to_vec();
                fewer.remove(rng.below(found.len() as u64) as usize);
                *found = fewer.into();
            }
            _ => continue,
        }
        if ops[at] != before {
            let report = check(&history);
            assert!(!report.is_clean(), "seed {seed}: T{no} operation {at}, {before:?} before, unnoticed");
            changed += 1;
        }
    }
}

/// A transaction of unknown outcome counts as committed once a reader saw its writes, and never has to.
#[test]
fn unknown_outcomes() {
    let at = |text| check(&parse(text, Isolation::Serializable, Place::default()));
    for text in ["b1 w1x1 b2 r2x1 c2", "b1 w1x1 b2 r2x0 c2", "b1 a1l1 b2 l2l=1 c2 Fl=1", "b1 w1x1 fx0", "b1 w1x1 fx1"] {
        let report = at(text);
        assert!(report.is_clean(), "{text}: {report}");
    }
    let report = at("b1 a1l1 a1m2 b2 l2l=1 l2m= c2");
    assert!(report.has(Anomaly::SingleAnti) || report.has(Anomaly::Fractured), "{report}");
}

/// The time is linear in the history.
#[test]
fn long_histories() {
    let txns = if super::full() { 1_000_000 } else { 50_000 };
    let plan = Plan { registers: 2000, ..plan(&[Isolation::Serializable], txns, 1) };
    let history = generate(&plan);
    let start = std::time::Instant::now();
    let report = check(&history);
    println!("{txns} transactions, {} edges, checked in {:.1?}", report.edges, start.elapsed());
    assert!(report.is_clean(), "{report}");
}
