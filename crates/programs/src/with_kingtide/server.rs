//! A server that keeps keys and values: each line is `get KEY` or `set KEY VALUE`.

use kingtide::{Db, Result};
use std::io;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_blocking;

/// Serves until the listener fails.
pub async fn serve(db: Db, listener: TcpListener) -> io::Result<()> {
    loop {
        let (socket, _) = listener.accept().await?;
        tokio::spawn(talk(db.clone(), socket));
    }
}

async fn talk(db: Db, mut socket: TcpStream) -> io::Result<()> {
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

fn answer(db: &Db, line: &str) -> Result<String> {
    match line.splitn(3, ' ').collect::<Vec<_>>()[..] {
        ["get", key] => Ok(db.get(key)?.map_or("none".into(), |v| format!("value {}", String::from_utf8_lossy(&v)))),
        ["set", key, value] => db.put(key, value).map(|()| "stored".into()),
        _ => Ok("error: get KEY, or set KEY VALUE".into()),
    }
}
