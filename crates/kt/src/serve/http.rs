//! The little of HTTP/1.1 that `kt serve` needs: the head of a request, and answers that close the connection.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Longest head of a request. Those of browsers have some hundred bytes.
const HEAD: usize = 16 << 10;
/// How long the other side may take to send a request, and to take each piece of the answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was asked for.
pub struct Request {
    pub method: String,
    /// Without what follows a question mark.
    pub path: String,
    /// The header `Host`, empty if there is none.
    pub host: String,
}

impl Request {
    /// The request in the head of one; `None` if it is none.
    fn parse(head: &str) -> Option<Request> {
        let mut lines = head.lines();
        let mut first = lines.next()?.split(' ');
        let (method, target) = (first.next()?, first.next()?);
        first.next().filter(|v| v.starts_with("HTTP/1."))?;
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("host").then(|| value.trim().to_owned())
        };
        let path = target.split('?').next().unwrap_or_default();
        Some(Request {
            method: method.to_owned(),
            path: path.to_owned(),
            host: lines.find_map(header).unwrap_or_default(),
        })
    }

    /// Whether its host is this machine's by a name that always means it.
    pub fn is_for_loopback(&self) -> bool {
        let name = match self.host.strip_prefix('[') {
            Some(address) => address.split(']').next().unwrap_or_default(),
            None => self.host.split(':').next().unwrap_or_default(),
        };
        let is_loopback = |a: std::net::IpAddr| a.is_loopback();
        name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback)
    }
}

/// Reads the head of a request; `None` when it is none, too long, or too slow.
pub fn read(connection: &TcpStream) -> Option<Request> {
    connection.set_write_timeout(Some(PATIENCE)).ok()?;
    read_within(connection, PATIENCE)
}

/// Reads the head of a request that has to be there after that time, however little of it comes at a time.
fn read_within(mut connection: &TcpStream, patience: Duration) -> Option<Request> {
    let since = Instant::now();
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        let left = patience.checked_sub(since.elapsed()).filter(|left| !left.is_zero())?;
        connection.set_read_timeout(Some(left)).ok()?;
        let n = connection.read(&mut piece).ok().filter(|n| *n > 0)?;
        head.extend_from_slice(piece.get(..n)?);
        if head.len() > HEAD {
            return None;
        }
    }
    Request::parse(std::str::from_utf8(&head).ok()?)
}

/// An answer.
pub struct Answer {
    status: &'static str,
    kind: &'static str,
    body: Vec<u8>,
}

impl Answer {
    pub fn new(status: &'static str, kind: &'static str, body: impl Into<Vec<u8>>) -> Answer {
        Answer { status, kind, body: body.into() }
    }

    /// A line for a person.
    pub fn text(status: &'static str, text: impl Into<String>) -> Answer {
        Answer::new(status, "text/plain; charset=utf-8", text.into() + "\n")
    }

    /// Sends it, and closes the connection.
    pub fn send(&self, mut to: TcpStream) -> io::Result<()> {
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; \
             script-src 'unsafe-inline'; connect-src 'self'; img-src data:\r\n\r\n",
            self.status,
            self.kind,
            self.body.len()
        );
        to.write_all(head.as_bytes())?;
        to.write_all(&self.body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_parsed() {
        let request =
            Request::parse("GET /metrics?x=1 HTTP/1.1\r\nAccept: */*\r\nhOsT: localhost:9190\r\n\r\n").unwrap();
        assert_eq!((request.method.as_str(), request.path.as_str()), ("GET", "/metrics"));
        assert!(request.is_for_loopback());
        for none in ["", "GET\r\n\r\n", "GET / SPDY\r\n\r\n"] {
            assert!(Request::parse(none).is_none(), "{none}");
        }
    }

    #[test]
    fn a_request_that_comes_in_drops_is_given_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (connection, _) = listener.accept().unwrap();
        // Each drop comes in time, but not all of them together: there is no end of a head, nor of the connection.
        let drops = std::thread::spawn(move || {
            let mut sent = 0;
            while client.write_all(b"x").is_ok() {
                sent += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            sent
        });
        assert!(read_within(&connection, Duration::from_millis(100)).is_none());
        drop(connection);
        let sent: usize = drops.join().unwrap();
        assert!(sent < HEAD, "it was not given up before {sent} bytes were more than any head has");
    }

    #[test]
    fn only_names_that_mean_this_machine_do() {
        let is_ours =
            |host: &str| Request { method: String::new(), path: String::new(), host: host.into() }.is_for_loopback();
        for ours in ["localhost", "LocalHost:80", "127.0.0.1:9190", "127.1.2.3", "[::1]:9190"] {
            assert!(is_ours(ours), "{ours}");
        }
        for other in ["", "example.org", "localhost.example.org:80", "127.0.0.1.example.org", "[::2]", "10.0.0.1"] {
            assert!(!is_ours(other), "{other}");
        }
    }
}
