//! The idgen server that tags are brought to: asked and told over several connections at once.
//!
//! On a store that nodes share, a floor is answered only after every node has heard of it, seconds later; one connection
//! would take hours for many tags. Each job is told of by itself, and a broken connection is opened again for the next:
//! what one tag meets keeps no other from being done.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use indicatif::ProgressBar;
use tokio::task::JoinSet;

use super::plan::{Standing, Target};
use crate::cli::client::{Client, Login, Place, Reply, shown, text};
use crate::ids::TagName;

/// How many connections are opened at most.
const MAX_CONNECTIONS: usize = 64;

/// How long a reply may take. A floor waits for twice `tags.refresh`, which is a minute at most.
const PATIENCE: Duration = Duration::from_mins(3);

/// The server.
#[derive(Clone, Debug)]
pub struct Server {
    /// Where it is.
    pub place: Place,
    /// Who logs in.
    pub login: Login,
}

/// Something to ask or to do.
#[derive(Clone, Debug)]
pub enum Job {
    /// How does this tag stand?
    Look(TagName),
    /// Create the tag with this first id.
    Create(Box<Target>, u64),
    /// Raise the tag's floor to this; `true`: however far.
    Raise(TagName, u64, bool),
}

/// How a job ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The tag as it stands; `None`: there is none.
    Standing(Option<Standing>),
    /// It is done.
    Done,
}

/// Why a job was not done.
enum Failure {
    /// The server said no.
    Refused(String),
    /// The connection is of no more use.
    Broken(String),
}

impl Server {
    /// Connects once, and sees that it is an idgen server which answers.
    ///
    /// # Errors
    /// In words: nobody answers, it is another server, or the login is missing or refused.
    pub async fn check(&self) -> Result<(), String> {
        let fail = |text: String| format!("{}: {text}", self.place);
        let mut client = Client::connect(&self.place, &self.login).await.map_err(fail)?;
        // Too few words: idgen knows the command and says so, any other server doesn't.
        match client.call(&[b"IDINFO"], PATIENCE).await {
            Ok(Reply::Error(text)) if text.starts_with("ERR unknown command") => {
                return Err(fail("it is not idgen".into()));
            }
            Ok(_) => {}
            Err(error) => return Err(fail(error.to_string())),
        }
        match client.call(&[b"PING"], PATIENCE).await {
            Ok(Reply::Error(text)) if text.starts_with("NOAUTH") => {
                Err(fail("it asks for a login: --user NAME, and the token in IDGEN_PASSWORD or --password-file".into()))
            }
            // Who may not ask that may still bring tags.
            Ok(Reply::Error(text)) if !text.starts_with("NOPERM") => Err(fail(shown(&text))),
            Ok(_) => Ok(()),
            Err(error) => Err(fail(error.to_string())),
        }
    }

    /// Does all `jobs` and tells of each how it ended, in the same order.
    pub async fn work(&self, jobs: Vec<Job>, bar: &ProgressBar) -> Vec<Result<Answer, String>> {
        let mut answers = vec![Err("not done: no connection to the server was left".to_owned()); jobs.len()];
        let workers = jobs.len().min(MAX_CONNECTIONS);
        let (jobs, next) = (Arc::new(jobs), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..workers {
            tasks.spawn(worker(self.clone(), Arc::clone(&jobs), Arc::clone(&next), bar.clone()));
        }
        for (at, answer) in tasks.join_all().await.into_iter().flatten() {
            if let Some(place) = answers.get_mut(at) {
                *place = answer;
            }
        }
        answers
    }
}

/// Takes one job after the other until there is none, or the server can't be reached.
async fn worker(
    server: Server,
    jobs: Arc<Vec<Job>>,
    next: Arc<AtomicUsize>,
    bar: ProgressBar,
) -> Vec<(usize, Result<Answer, String>)> {
    let mut answers = Vec::new();
    let mut open = None;
    loop {
        // The connection first: a job is taken by who can do it.
        let mut client = match open.take() {
            Some(client) => client,
            None if next.load(Ordering::Relaxed) >= jobs.len() => return answers,
            None => match Client::connect(&server.place, &server.login).await {
                Ok(client) => client,
                Err(_) => return answers,
            },
        };
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some(job) = jobs.get(at) else { return answers };
        let answer = match perform(&mut client, job).await {
            Err(Failure::Broken(text)) => Err(format!("{text}; run this again, it does what is left")),
            Err(Failure::Refused(text)) => {
                open = Some(client);
                Err(text)
            }
            Ok(answer) => {
                open = Some(client);
                Ok(answer)
            }
        };
        answers.push((at, answer));
        bar.inc(1);
    }
}

async fn perform(client: &mut Client, job: &Job) -> Result<Answer, Failure> {
    match job {
        Job::Look(tag) => match ask(client, &["IDINFO", tag.as_str()]).await {
            Ok(reply) => {
                let standing = standing(&reply).ok_or_else(|| Failure::Refused("not a reply to IDINFO".to_owned()))?;
                Ok(Answer::Standing(Some(standing)))
            }
            Err(Failure::Refused(text)) if text.starts_with("IDNOTAG") => Ok(Answer::Standing(None)),
            Err(failure) => Err(failure),
        },
        Job::Create(target, start) => {
            let start = start.to_string();
            let step = target.step.map(|step| step.to_string());
            let mut words = vec!["IDTAG", "CREATE", target.tag.as_str(), "ENGINE", "segment", "START", &start];
            words.extend(step.iter().flat_map(|step| ["STEP", step]));
            words.extend(target.description.iter().flat_map(|text| ["DESC", text]));
            done(&ask(client, &words).await?)
        }
        Job::Raise(tag, floor, force) => {
            let floor = floor.to_string();
            let mut words = vec!["IDTAG", "FLOOR", tag.as_str(), &floor];
            words.extend(force.then_some("FORCE"));
            done(&ask(client, &words).await?)
        }
    }
}

fn done(reply: &Reply) -> Result<Answer, Failure> {
    match text(reply).as_deref() {
        Some("OK") => Ok(Answer::Done),
        _ => Err(Failure::Refused("the server's answer is not OK".to_owned())),
    }
}

async fn ask(client: &mut Client, words: &[&str]) -> Result<Reply, Failure> {
    let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
    match client.call(&words, PATIENCE).await {
        Ok(Reply::Error(text)) => Err(Failure::Refused(shown(&text))),
        Ok(reply) => Ok(reply),
        Err(error) => Err(Failure::Broken(error.to_string())),
    }
}

/// What `IDINFO` tells: names and values in turn. A Snowflake tag has no counter.
fn standing(reply: &Reply) -> Option<Standing> {
    let Reply::Array(items) = reply else { return None };
    let field = |name: &str| {
        let pair = items.chunks(2).find(|pair| pair.first().and_then(text).as_deref() == Some(name))?;
        pair.get(1)
    };
    let number = |name: &str| match field(name) {
        Some(Reply::Integer(number)) => u64::try_from(*number).ok(),
        Some(other) => text(other)?.parse().ok(),
        None => None,
    };
    let engine = text(field("engine")?)?;
    let retired = number("retired")? != 0;
    if engine != "segment" {
        return Some(Standing { engine, max_id: 0, floor: 0, max: 0, retired });
    }
    let (max_id, floor, max) = (number("max_id")?, number("floor")?, number("max")?);
    Some(Standing { engine, max_id, floor, max, retired })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_read_from_idinfo_by_the_names_of_its_fields() {
        let bulk = |text: &str| Reply::BulkString(text.as_bytes().to_vec());
        let mut fields = vec![
            bulk("engine"),
            bulk("segment"),
            bulk("max"),
            Reply::Integer(i64::MAX),
            bulk("max_id"),
            Reply::Integer(1000),
            bulk("floor"),
            Reply::Integer(7),
            bulk("retired"),
            Reply::Integer(0),
        ];
        let found = standing(&Reply::Array(fields.clone())).expect("whole");
        let expected =
            Standing { engine: "segment".into(), max_id: 1000, floor: 7, max: crate::ids::MAX_ID, retired: false };
        assert_eq!(found, expected);
        fields.remove(5);
        assert_eq!(standing(&Reply::Array(fields)), None);
        let snowflake = vec![bulk("engine"), bulk("snowflake"), bulk("retired"), Reply::Integer(1)];
        assert!(standing(&Reply::Array(snowflake)).expect("whole").retired);
    }
}
