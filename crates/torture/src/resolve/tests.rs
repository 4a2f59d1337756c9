use super::*;
use crate::model::{LANES, State, Unit};

const SLOTS: [u16; 4] = [10, 20, 30, 40];

fn step(n: u64, ops: Vec<Op>, must: bool) -> Step {
    Step { unit: Unit { n, work: Work::Commit(ops), logged: must }, must, sequence: 10 * n }
}

fn found_of(lane: &Lane) -> Found {
    let mut found = Found { lanes: vec![BTreeMap::new(); LANES], ..Found::default() };
    found.prepared.resize(LANES, BTreeMap::new());
    found.lanes[1] = lane.keys.iter().map(|(place, e)| (*place, e.id)).collect();
    found.prepared[1] = lane.prepared.iter().map(|(n, p)| (*n, p.unit)).collect();
    found
}

fn after(base: &Lane, steps: &[&Step]) -> Lane {
    let mut lane = base.clone();
    for step in steps {
        lane.apply(1, &step.unit, |_| true);
        lane.last = step.unit.n;
    }
    lane
}

fn base() -> Lane {
    after(&Lane::default(), &[&step(1, SLOTS.iter().map(|s| Op::Put(0, *s, 0)).collect(), true)])
}

fn judge(base: &Lane, steps: &Steps, found: &Found, axis: Axis) -> Result<Resolved, String> {
    let families = State::new().families;
    resolve(1, base, steps, &Reading { families: &families, found, axis })
}

#[test]
fn an_acknowledged_unit_that_is_lost_or_found_in_part_is_an_error() {
    let unit = step(2, vec![Op::Put(0, 10, 0), Op::Delete(0, 20), Op::DeleteRange(0, 30, 35)], true);
    let steps = Steps { done: vec![unit.clone()], in_flight: None };
    let all = after(&base(), &[&unit]);
    assert_eq!(judge(&base(), &steps, &found_of(&all), Axis::Family).unwrap().lane, all);
    let e = judge(&base(), &steps, &found_of(&base()), Axis::Family).unwrap_err();
    assert!(e.contains("slot 30 holds lane 1 unit 1 operation 2 instead of nothing"), "{e}");
    let mut part = all.clone();
    part.keys.remove(&(0, 40));
    let e = judge(&base(), &steps, &found_of(&part), Axis::Family).unwrap_err();
    assert!(e.contains("LOST: family number 0 slot 40"), "{e}");
}

#[test]
fn a_unit_in_flight_is_there_as_a_whole_or_not_at_all() {
    let unit = step(2, vec![Op::Put(0, 10, 0), Op::Delete(0, 20)], true);
    let steps = Steps { done: Vec::new(), in_flight: Some(unit.unit.clone()) };
    let all = after(&base(), &[&unit]);
    assert_eq!(judge(&base(), &steps, &found_of(&all), Axis::Family).unwrap().in_flight, Some(true));
    assert_eq!(judge(&base(), &steps, &found_of(&base()), Axis::Family).unwrap().in_flight, Some(false));
    let mut part = all.clone();
    part.keys.insert((0, 20), base().keys[&(0, 20)]);
    assert!(judge(&base(), &steps, &found_of(&part), Axis::Family).is_err());
}

#[test]
fn unlogged_units_survive_up_to_a_point_in_each_family_and_logged_ones_all() {
    let a = step(2, vec![Op::Put(0, 10, 0)], false);
    let b = step(3, vec![Op::Put(0, 20, 0)], true);
    let c = step(4, vec![Op::Put(0, 10, 0), Op::Put(0, 30, 0)], false);
    let steps = Steps { done: vec![a.clone(), b.clone(), c.clone()], in_flight: None };
    for kept in [vec![&b], vec![&a, &b], vec![&a, &b, &c]] {
        let state = after(&base(), &kept);
        let resolved = judge(&base(), &steps, &found_of(&state), Axis::Family).unwrap();
        assert_eq!((resolved.lane.keys, resolved.missing), (state.keys, 3 - kept.len() as u64));
    }
    for lost in [vec![], vec![&a], vec![&a, &c]] {
        assert!(judge(&base(), &steps, &found_of(&after(&base(), &lost)), Axis::Family).is_err(), "{lost:?}");
    }
    let mut part = after(&base(), &[&a, &b, &c]);
    part.keys.insert((0, 30), base().keys[&(0, 30)]);
    assert!(judge(&base(), &steps, &found_of(&part), Axis::Family).is_err(), "a part of a unit");
}

#[test]
fn a_copy_holds_a_prefix_of_each_lane_and_lanes_agree_on_it() {
    let a = step(2, vec![Op::Put(0, 10, 0)], false);
    let b = Step { unit: Unit { n: 3, work: Work::Prepare(0, vec![Op::Put(0, 20, 0)]), logged: true }, ..a.clone() };
    let c = Step { unit: Unit { n: 4, work: Work::Decide(0, true), logged: true }, sequence: 40, ..a.clone() };
    let steps = Steps { done: vec![a.clone(), b.clone(), c.clone()], in_flight: None };
    for (kept, cut) in [(vec![], (0, 20)), (vec![&a, &b], (20, 40)), (vec![&a, &b, &c], (40, u64::MAX))] {
        let state = after(&base(), &kept);
        let resolved = judge(&base(), &steps, &found_of(&state), Axis::Lane).unwrap();
        assert_eq!((&resolved.lane.keys, &resolved.lane.prepared), (&state.keys, &state.prepared));
        assert_eq!(resolved.cuts[&0], cut);
    }
    assert!(judge(&base(), &steps, &found_of(&after(&base(), &[&b])), Axis::Lane).is_err(), "a hole");
    let at = |kept: &[&Step]| judge(&base(), &steps, &found_of(&after(&base(), kept)), Axis::Lane).unwrap();
    assert!(check_cuts([at(&[&a, &b, &c]), at(&[&a])].iter()).is_err(), "one lane has 40, the other misses 20");
    assert!(check_cuts([at(&[&a, &b]), at(&[&a, &b])].iter()).is_ok());
}

#[test]
fn what_expires_may_be_found_until_then() {
    let entry = Some(Entry { id: 7, expires: 1000 });
    assert!(matches(Some(7), entry, (900, 950)) && !matches(None, entry, (900, 950)));
    assert!(matches(None, entry, (1100, 1200)) && !matches(Some(7), entry, (1100, 1200)));
    assert!(matches(None, entry, (900, 1100)) && matches(Some(7), entry, (900, 1100)));
    assert!(!matches(Some(8), entry, (900, 950)));
}
