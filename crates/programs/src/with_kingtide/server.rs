//! A server that keeps keys and values: each line is `get KEY` or `set KEY VALUE`.

use kingtide::{AsyncDb, Result};
use std::io;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Serves until the listener fails.
pub async fn serve(db: AsyncDb, listener: TcpListener) -> io::Result<()> {
    loop {
        let (socket, _) = listener.accept().await?;
        tokio::spawn(talk(db.clone(), socket));
    }
}

async fn talk(db: AsyncDb, mut socket: TcpStream) -> io::Result<()> {
    let (read, mut write) = socket.split();
    let mut lines = BufReader::new(read).lines();
    while let Some(line) = lines.next_line().await? {
        let answer = answer(&db, &line).await.unwrap_or_else(|e| format!("error {e}"));
        write.write_all(format!("{answer}\n").as_bytes()).await?;
    }
    Ok(())
}

async fn answer(db: &AsyncDb, line: &str) -> Result<String> {
    match line.splitn(3, ' ').collect::<Vec<_>>()[..] {
        ["get", key] => {
            Ok(db.get(key).await?.map_or("none".into(), |v| format!("value {}", String::from_utf8_lossy(&v))))
        }
        ["set", key, value] => db.put(key, value).await.map(|_| "stored".into()),
        _ => Ok("error: get KEY, or set KEY VALUE".into()),
    }
}
