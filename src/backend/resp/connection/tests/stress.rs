//! Callers on several threads, over a real socket that is often full.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use redis::io::tcp::socket2::SockRef;

use super::*;
use crate::backend::resp::socket;
use crate::config::Server;

const CALLERS: u64 = 4;

/// The calls that the server has received, in order.
type Received = Vec<(u64, u64)>;

/// Pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Reads lines `caller number answers padding`, and answers each that many times with its number, in pieces,
/// with pushes in between.
fn serve(stream: TcpStream, mut dice: Dice, received: Sender<(u64, u64)>) {
    let mut input = BufReader::new(stream.try_clone().unwrap());
    let (mut output, mut line, mut answers) = (stream, String::new(), Vec::new());
    loop {
        line.clear();
        if input.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let numbers: Vec<u64> = line.split(' ').take(3).map(|number| number.parse().unwrap()).collect();
        received.send((numbers[0], numbers[1])).unwrap();
        for answer in 0..numbers[2] {
            let _ = write!(answers, ":{}\r\n", numbers[1] * 10 + answer);
            if dice.roll(20) == 0 {
                answers.extend_from_slice(b">2\r\n+invalidate\r\n_\r\n");
            }
        }
        if dice.roll(500) == 0 {
            thread::sleep(Duration::from_millis(dice.roll(4)));
        }
        if input.buffer().is_empty() || dice.roll(8) == 0 {
            let cut = dice.roll(answers.len() as u64 + 1) as usize;
            if output.write_all(&answers[..cut]).is_err() {
                return;
            }
            if dice.roll(50) == 0 {
                thread::yield_now();
            }
            if output.write_all(&answers[cut..]).is_err() {
                return;
            }
            answers.clear();
        }
    }
}

/// Checks that each call gets its own answers, whatever is dropped; that what is reported as unsent is not
/// sent; that the calls of one caller arrive in order; and that no call waits for ever.
fn stress(calls: u64, padding: u64, seed: u64) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _ = SockRef::from(&listener).set_recv_buffer_size(4096);
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = channel();
    let server = thread::spawn(move || serve(listener.accept().unwrap().0, Dice(seed + 1), sender));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let to = Server::from(format!("redis://{address}")).destination().unwrap();
    let connection = runtime.block_on(async {
        let halves = socket::open(&to).await.unwrap();
        if let socket::Writer::Tcp(half) = &halves.1 {
            SockRef::from(half.as_ref()).set_send_buffer_size(4096).unwrap();
        }
        silent(halves)
    });
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let connection = connection.clone();
            thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(call(connection, caller, calls, padding, Dice(seed * 31 + caller + 7)))
            })
        })
        .collect();
    // By caller: the calls that are known to be sent, and those that are known not to be.
    let known: Vec<(Vec<u64>, Vec<u64>)> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
    assert!(lock(&connection.handle.shared.calls).is_idle(), "something is left");
    drop(connection);
    server.join().unwrap();
    let received: Received = receiver.iter().collect();
    let mut by_caller: HashMap<u64, Vec<u64>> = HashMap::new();
    received.iter().for_each(|(caller, number)| by_caller.entry(*caller).or_default().push(*number));
    for (caller, (sent, unsent)) in (0..CALLERS).zip(known) {
        let received = &by_caller[&caller];
        assert!(received.is_sorted_by(|one, other| one < other), "out of order, or twice");
        assert!(sent.iter().all(|number| received.binary_search(number).is_ok()));
        assert!(
            unsent.iter().all(|number| received.binary_search(number).is_err()),
            "sent, though reported as unsent"
        );
    }
}

async fn call(
    connection: Connection,
    caller: u64,
    calls: u64,
    padding: u64,
    mut dice: Dice,
) -> (Vec<u64>, Vec<u64>) {
    let (mut sent, mut unsent) = (Vec::new(), Vec::new());
    let mut under_way = Vec::new();
    for number in 1..=calls {
        let answers = 1 + dice.roll(3);
        let text = format!("{caller} {number} {answers} {}\n", "x".repeat(dice.roll(padding + 1) as usize));
        let deadline = match dice.roll(3) {
            0 => None,
            1 => Some(Instant::now() + Duration::from_micros(dice.roll(2000))),
            _ => Some(Instant::now() + Duration::from_secs(600)),
        };
        let connection = &connection;
        let mut future = Box::pin(async move {
            let answer = connection.run_all(deadline, answers as usize, |out| out.extend(text.bytes())).await;
            (number, answers, answer)
        });
        // The first poll sends the call, as it does for a real caller.
        let first = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        match first {
            Poll::Ready(done) => check(done, &mut sent, &mut unsent),
            Poll::Pending if dice.roll(4) == 0 => drop(future),
            Poll::Pending => under_way.push(future),
        }
        while under_way.len() > 16 || (!under_way.is_empty() && dice.roll(3) == 0) {
            let at = dice.roll(under_way.len() as u64) as usize;
            let future = under_way.swap_remove(at);
            if dice.roll(10) == 0 {
                drop(future);
                continue;
            }
            let done = timeout(Duration::from_secs(60), future).await.expect("it waits for ever");
            check(done, &mut sent, &mut unsent);
        }
    }
    drop(under_way);
    // The last call is queued after all that was given up.
    let text = format!("{caller} {} 1 \n", calls + 1);
    let last = timeout(Duration::from_secs(60), connection.run(None, |out| out.extend(text.bytes()))).await;
    assert_eq!(last.expect("it waits for ever").unwrap(), Value::Int(calls as i64 * 10 + 10));
    (sent, unsent)
}

fn check(
    (number, answers, answer): (u64, u64, RedisResult<Vec<Value>>),
    sent: &mut Vec<u64>,
    unsent: &mut Vec<u64>,
) {
    match answer {
        Ok(values) => {
            let expected: Vec<_> = (0..answers).map(|at| Value::Int((number * 10 + at) as i64)).collect();
            assert_eq!(values, expected);
            sent.push(number);
        }
        Err(error) => {
            assert!(why_unsent(&error).is_some(), "{error}");
            unsent.push(number);
        }
    }
}

#[test]
fn callers_on_several_threads_get_their_own_answers() {
    let number = |name, default| std::env::var(name).map_or(default, |number| number.parse().unwrap());
    let (calls, seed) = (number("NESTLOCK_PIPE_CALLS", 2_000), number("NESTLOCK_PIPE_SEED", 1));
    stress(calls, 30, seed);
    // Calls so long that the socket is full.
    stress(calls / 10, 3_000, seed);
}
