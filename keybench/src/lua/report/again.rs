//! The page and the text of a run that is over, also of one that was killed and left no more than its `report.json`.

use super::{html, text};
use crate::error::{Error, Result};
use crate::figure::Figure;
use crate::results::Results;
use std::path::Path;

/// Writes them into `dir` again, from the `report.json` that is there; without one it does nothing.
///
/// # Errors
/// A `report.json` of another form; what the file system says.
pub fn again(dir: &Path, figures: &[Figure]) -> Result<()> {
    let from = dir.join("report.json");
    if !from.is_file() {
        return Ok(());
    }
    let results = Results::load(&from)?;
    for (name, content) in [("report.html", html::render(&results, figures)), ("report.txt", text::render(&results))] {
        let path = dir.join(name);
        std::fs::write(&path, content).map_err(|e| Error::io("write", &path, e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::check;
    use crate::results::tests::run;

    #[test]
    fn what_a_killed_run_left_becomes_a_report() {
        let dir = std::env::temp_dir().join(format!("keybench-again-{}", std::process::id()));
        crate::process::fresh_dir(&dir).unwrap();
        again(&dir, &[]).unwrap();
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "nothing comes of nothing");
        run(&[("kingtide", &[30, 31, 32]), ("rocksdb", &[10, 11, 12])]).save(&dir.join("report.json")).unwrap();
        again(&dir, &[]).unwrap();
        let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
        check::page(&page);
        assert!(page.contains("is incomplete") && page.contains("kingtide is the fastest at all 2 points"));
        let text = std::fs::read_to_string(dir.join("report.txt")).unwrap();
        assert!(text.contains("mixed at 4 threads: kingtide is faster than rocksdb"), "{text}");
        let mut failed = run(&[("kingtide", &[30, 31, 32])]);
        failed.points[0].figures.ops[0].failed = 7;
        failed.points[0].repeats[1].measured.first_failure = Some("put: disk on fire".into());
        failed.save(&dir.join("report.json")).unwrap();
        again(&dir, &[]).unwrap();
        for name in ["report.html", "report.txt"] {
            let told = std::fs::read_to_string(dir.join(name)).unwrap();
            assert!(
                told.contains("7 put failed, and the script went on; the first: put: disk on fire"),
                "{name}: {told}"
            );
        }
        std::fs::write(dir.join("report.json"), "{\"format\":99}").unwrap();
        assert!(again(&dir, &[]).unwrap_err().to_string().contains("its format is 99"));
        crate::process::remove_dir(&dir).unwrap();
    }
}
