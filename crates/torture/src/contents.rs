//! What a database holds, in the terms of the model. Every key and value is checked by itself: the order of keys, that a
//! key is one of the tester's, and that a value is what the unit that it names puts there.

use crate::model::{
    ACCOUNT, ACCOUNTS, DEFAULT, FOREIGN, Family, LANES, Place, State, id_in, order, parse_key, value_into,
};
use kingtide::{Cursor, Db};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// The contents of a database.
#[derive(Debug, Default)]
pub struct Found {
    /// By lane: the ids of its keys.
    pub lanes: Vec<BTreeMap<Place, u64>>,
    pub accounts: [i64; ACCOUNTS],
    /// By lane: the transactions in doubt, with the units that prepared them.
    pub prepared: Vec<BTreeMap<u8, u64>>,
    /// What another build wrote through `kt`.
    pub foreign: BTreeMap<u16, Vec<u8>>,
    /// When reading began and ended, in milliseconds since 1970.
    pub time: (u64, u64),
    pub keys: u64,
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

impl Found {
    fn add(
        &mut self,
        uid: u32,
        family: &Family,
        key: &[u8],
        value: &[u8],
        scratch: &mut Vec<u8>,
    ) -> Result<(), String> {
        self.keys += 1;
        let (lane, slot) = parse_key(family.order, key).ok_or("not a key of this tool")?;
        if lane == ACCOUNT && uid == DEFAULT {
            let account = self.accounts.get_mut(usize::from(slot)).ok_or("no such account")?;
            *account = i64::from_le_bytes(value.try_into().map_err(|_| "an account that is no number")?);
            return Ok(());
        }
        if lane == FOREIGN && uid == DEFAULT {
            self.foreign.insert(slot, value.to_vec());
            return Ok(());
        }
        let id = check_value(usize::from(lane), slot, value, scratch)?;
        self.lanes.get_mut(usize::from(lane)).ok_or("no such lane")?.insert((uid, slot), id);
        Ok(())
    }

    fn read_family(&mut self, db: &Db, uid: u32, family: &Family) -> Result<(), String> {
        let handle = db.family(&family.name).map_err(|e| e.to_string())?;
        if handle.order().name() != order(family.order).name() {
            return Err(format!("its key order is {}", handle.order().name()));
        }
        let mut it = handle.cursor(..).map_err(|e| e.to_string())?;
        let mut scratch = Vec::new();
        let mut before: Option<Vec<u8>> = None;
        it.seek_to_first();
        while it.valid() {
            let (key, value) = it.entry().map_err(|e| format!("behind key {before:?}: {e}"))?;
            if before.as_ref().is_some_and(|b| handle.order().compare(b, key).is_ge()) {
                return Err(format!("key {key:?} comes after {before:?}"));
            }
            self.add(uid, family, key, value, &mut scratch).map_err(|e| format!("key {key:?}: {e}"))?;
            before = Some(key.to_vec());
            it.next();
        }
        it.status().map_err(|e| format!("behind key {before:?}: {e}"))
    }

    /// The accounts hold what the lanes added.
    pub fn check_accounts(&self, state: &State) -> Result<(), String> {
        let mut sums = [0; ACCOUNTS];
        for lane in &state.lanes {
            sums.iter_mut().zip(lane.sums).for_each(|(sum, of_lane)| *sum += of_lane);
        }
        if sums == self.accounts {
            return Ok(());
        }
        Err(format!("WRONG: the accounts hold {:?} instead of {sums:?}", self.accounts))
    }
}

/// The id of a value that must be a lane's.
pub fn check_value(lane: usize, slot: u16, value: &[u8], scratch: &mut Vec<u8>) -> Result<u64, String> {
    let id = id_in(value).ok_or_else(|| format!("a value of {} bytes", value.len()))?;
    value_into(id, slot, scratch);
    if id >> 56 != lane as u64 || *scratch != value {
        return Err(format!("WRONG value of {} bytes that names {}", value.len(), crate::model::show_id(id)));
    }
    Ok(id)
}

/// Reads everything. `families` says which there are.
pub fn read(db: &Db, families: &BTreeMap<u32, Family>) -> Result<Found, String> {
    let mut found = Found { lanes: vec![BTreeMap::new(); LANES], ..Found::default() };
    found.prepared.resize(LANES, BTreeMap::new());
    found.time.0 = now_ms();
    for (uid, family) in families {
        found.read_family(db, *uid, family).map_err(|e| format!("family '{}' (number {uid}): {e}", family.name))?;
    }
    found.time.1 = now_ms();
    for info in db.recover_prepared() {
        let text = String::from_utf8_lossy(&info.xid).into_owned();
        let parts: Vec<u64> = text.split('-').skip(1).filter_map(|p| p.parse().ok()).collect();
        let [lane, number, unit] = parts[..] else { return Err(format!("unknown transaction in doubt: {text}")) };
        let lane = found
            .prepared
            .get_mut(lane as usize)
            .ok_or_else(|| format!("a transaction in doubt of an unknown lane: '{text}'"))?;
        lane.insert(number as u8, unit);
    }
    Ok(found)
}

/// The entries of an iterator that is positioned, forwards or backwards.
pub fn collect(it: &mut Cursor, forward: bool) -> kingtide::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut all = Vec::new();
    while it.valid() {
        let (key, value) = it.entry()?;
        all.push((key.to_vec(), value.to_vec()));
        if forward { it.next() } else { it.prev() }
    }
    it.status()?;
    Ok(all)
}
