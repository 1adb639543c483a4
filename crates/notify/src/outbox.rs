//! Messages that have yet to be sent, for each target, and when they are tried again.

use crate::message::Message;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most messages that wait for a target. With one more, the oldest is lost, and the next says so.
const MOST: usize = 50;
/// When a message is tried again, in seconds after each failure; then each time as long as the last.
const PAUSES: [i64; 5] = [60, 300, 900, 3600, 4 * 3600];

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outbox(BTreeMap<String, Line>);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Line {
    /// The oldest first.
    messages: Vec<Message>,
    /// How often the oldest has failed, and when it is tried again.
    failures: usize,
    next: i64,
    lost: u64,
}

impl Outbox {
    pub(crate) fn put(&mut self, target: &str, message: Message) {
        let line = self.0.entry(target.to_owned()).or_default();
        line.messages.push(message);
        if line.messages.len() > MOST {
            line.messages.remove(0);
            line.lost += 1;
        }
    }

    /// Drops what waits for targets that there are no more.
    pub(crate) fn keep(&mut self, is_target: impl Fn(&str) -> bool) {
        self.0.retain(|target, _| is_target(target));
    }

    /// Sends what is due. Returns why something was not sent, when it has failed for the first time, and who is reached again.
    pub(crate) fn send(
        &mut self,
        now: i64,
        mut send: impl FnMut(&str, &Message) -> Result<(), String>,
    ) -> Vec<(String, Result<(), String>)> {
        let mut turns = Vec::new();
        for (target, line) in &mut self.0 {
            while line.next <= now && !line.messages.is_empty() {
                let mut message = line.messages[0].clone();
                message.lost = line.lost;
                match send(target, &message) {
                    Ok(()) => {
                        line.messages.remove(0);
                        if std::mem::take(&mut line.failures) > 0 {
                            turns.push((target.clone(), Ok(())));
                        }
                        (line.next, line.lost) = (0, 0);
                    }
                    Err(why) => {
                        line.next = now + PAUSES[line.failures.min(PAUSES.len() - 1)];
                        line.failures += 1;
                        if line.failures == 1 {
                            turns.push((target.clone(), Err(why)));
                        }
                    }
                }
            }
        }
        self.0.retain(|_, line| !line.messages.is_empty());
        turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(at: i64) -> Message {
        Message { host: "h".into(), at, events: Vec::new(), test: false, lost: 0 }
    }

    #[test]
    fn what_cannot_be_sent_is_tried_again_and_told_once() {
        let mut outbox = Outbox::default();
        outbox.put("a", message(1));
        let mut tries = Vec::new();
        let mut failing = |outbox: &mut Outbox, now| {
            outbox.send(now, |_, message| {
                tries.push((now, message.at));
                Err("no route".into())
            })
        };
        assert_eq!(failing(&mut outbox, 0), [("a".to_owned(), Err("no route".to_owned()))]);
        for now in (10..10_000).step_by(10) {
            assert_eq!(failing(&mut outbox, now), []);
        }
        assert_eq!(tries.iter().map(|(now, _)| *now).collect::<Vec<_>>(), [0, 60, 360, 1260, 4860]);
        outbox.put("a", message(2));
        let mut sent = Vec::new();
        let text = serde_json::to_string(&outbox).unwrap();
        let mut outbox: Outbox = serde_json::from_str(&text).unwrap();
        let turns = outbox.send(20_000, |_, message| {
            sent.push(message.at);
            Ok(())
        });
        assert_eq!((turns, sent), (vec![("a".to_owned(), Ok(()))], vec![1, 2]));
    }

    #[test]
    fn a_target_that_is_never_reached_takes_no_more_than_its_room() {
        let mut outbox = Outbox::default();
        (0..MOST as i64 + 7).for_each(|at| outbox.put("a", message(at)));
        let mut lost = Vec::new();
        outbox.send(0, |_, message| {
            lost.push((message.at, message.lost));
            Ok(())
        });
        assert_eq!((lost.len(), lost[0], lost[1]), (MOST, (7, 7), (8, 0)));
    }
}
