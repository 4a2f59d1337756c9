//! A server that keeps keys and values: each line is `get KEY` or `set KEY VALUE`.

use redb::{Database, Error, ReadableDatabase, TableDefinition};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_blocking;

/// What is kept.
pub const ENTRIES: TableDefinition<&str, &str> = TableDefinition::new("entries");

/// Serves until the listener fails.
pub async fn serve(db: Arc<Database>, listener: TcpListener) -> io::Result<()> {
    loop {
        let (socket, _) = listener.accept().await?;
        tokio::spawn(talk(db.clone(), socket));
    }
}

async fn talk(db: Arc<Database>, mut socket: TcpStream) -> io::Result<()> {
    let (read, mut write) = socket.split();
    let mut lines = BufReader::new(read).lines();
    while let Some(line) = lines.next_line().await? {
        let db = db.clone();
        let answer = spawn_blocking(move || answer(&db, &line)).await?;
        write.write_all(answer.unwrap_or_else(|e| format!("error {e}")).as_bytes()).await?;
        write.write_all(b"\n").await?;
    }
    Ok(())
}

fn answer(db: &Database, line: &str) -> Result<String, Error> {
    match line.splitn(3, ' ').collect::<Vec<_>>()[..] {
        ["get", key] => {
            let entries = db.begin_read()?.open_table(ENTRIES)?;
            Ok(entries.get(key)?.map_or("none".into(), |value| format!("value {}", value.value())))
        }
        ["set", key, value] => {
            let txn = db.begin_write()?;
            txn.open_table(ENTRIES)?.insert(key, value)?;
            txn.commit()?;
            Ok("stored".into())
        }
        _ => Ok("error: get KEY, or set KEY VALUE".into()),
    }
}
