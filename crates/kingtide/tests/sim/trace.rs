//! A digest of everything that a run does to its disk and of every answer, to see that a run can be repeated.

use kingtide::Result;
use kingtide::vfs::{DirId, File, FileLock, Fs, OpenMode};
use kingtide_base::hash::{hash64, mix64};
use kingtide_base::options::FileMode;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The digest so far, and the last lines that went into it.
#[derive(Debug, Default)]
pub struct Trace {
    digest: Mutex<(u64, Vec<String>)>,
    paused: AtomicBool,
}

impl Trace {
    pub fn note(&self, what: &[u8]) {
        if self.paused.load(Ordering::SeqCst) {
            return;
        }
        let mut digest = self.digest.lock().expect("digest");
        digest.0 = mix64(digest.0.rotate_left(1) ^ hash64(what));
        let line = String::from_utf8_lossy(what).into_owned();
        digest.1.push(line);
    }

    pub fn pause(&self, on: bool) {
        self.paused.store(on, Ordering::SeqCst);
    }

    fn file(&self, op: &str, path: &Path, offset: u64, data: &[u8]) {
        self.note(format!("{op} {} {offset} {} {:x}", path.display(), data.len(), hash64(data)).as_bytes());
    }

    fn name(&self, op: &str, path: &Path, to: &Path) {
        self.note(format!("{op} {} {}", path.display(), to.display()).as_bytes());
    }

    pub fn digest(&self) -> (u64, Vec<String>) {
        self.digest.lock().expect("digest").clone()
    }
}

/// Tells a [`Trace`] of every write operation.
#[derive(Debug)]
pub struct TraceFs {
    pub inner: Arc<dyn Fs>,
    pub trace: Arc<Trace>,
}

impl TraceFs {
    fn wrap(&self, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(TraceFile { inner, trace: self.trace.clone() })
    }
}

impl Fs for TraceFs {
    fn with_mode(self: Arc<Self>, mode: FileMode) -> Arc<dyn Fs> {
        Arc::new(TraceFs { inner: self.inner.clone().with_mode(mode), trace: self.trace.clone() })
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        if mode != OpenMode::Read {
            self.trace.name("open", path, Path::new(""));
        }
        Ok(self.wrap(self.inner.open(path, mode)?))
    }

    fn open_log(&self, path: &Path, size: u64) -> Result<Arc<dyn File>> {
        self.trace.file("open_log", path, size, &[]);
        Ok(self.wrap(self.inner.open_log(path, size)?))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.trace.name("remove", path, Path::new(""));
        self.inner.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.trace.name("remove_dir", path, Path::new(""));
        self.inner.remove_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.trace.name("rename", from, to);
        self.inner.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.trace.name("hard_link", from, to);
        self.inner.hard_link(from, to)
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.trace.name("create_dir", path, Path::new(""));
        self.inner.create_dir_all(path)
    }

    fn list(&self, path: &Path) -> Result<Vec<String>> {
        self.inner.list(path)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.inner.exists(path)
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.trace.name("sync_dir", path, Path::new(""));
        self.inner.sync_dir(path)
    }

    fn dir_id(&self, path: &Path) -> Result<DirId> {
        self.inner.dir_id(path)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.inner.lock(path)
    }

    fn free_space(&self, path: &Path) -> Result<u64> {
        self.inner.free_space(path)
    }

    fn boot_id(&self) -> [u8; 16] {
        self.inner.boot_id()
    }
}

#[derive(Debug)]
struct TraceFile {
    inner: Arc<dyn File>,
    trace: Arc<Trace>,
}

impl File for TraceFile {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.inner.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.trace.file("write", self.path(), offset, data);
        self.inner.write_at(data, offset)
    }

    fn write_record_at(&self, head: &[u8], body: &[u8], offset: u64) -> Result<bool> {
        self.trace.file("record", self.path(), offset, head);
        self.trace.note(body);
        self.inner.write_record_at(head, body, offset)
    }

    fn sync_data(&self) -> Result<()> {
        self.trace.file("sync", self.path(), 0, &[]);
        self.inner.sync_data()
    }

    fn sync_all(&self) -> Result<()> {
        self.trace.file("sync_all", self.path(), 0, &[]);
        self.inner.sync_all()
    }

    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.trace.file("truncate", self.path(), len, &[]);
        self.inner.truncate(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.trace.file("allocate", self.path(), offset, &[]);
        self.trace.note(&len.to_le_bytes());
        self.inner.allocate(offset, len)
    }
}
