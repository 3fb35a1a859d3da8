//! How the file is found, locked, checked and made.
//!
//! Guaranteed: one process has the file; a file that is not ours, is damaged or was written by a newer program is refused
//! before anything is written to it; a database that was deleted is never silently started again at 1. How: a lock file
//! beside the database, which also remembers that there was one; a new database is made under another name and renamed
//! when it is complete, so that a half-made one is never met; and every later open is without "create".

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, SqlitePool};

use super::{Inner, Sqlite, schema};

/// `application_id` of our files: "idgn".
const APPLICATION_ID: i64 = 1_768_187_758;

/// How long SQLite itself waits for a lock that a person's shell holds, at most.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// The line of the lock file that says that a database was made here.
const MADE: &str = "database";

/// The line that says that its log is in use: it is taken back before a clean end removes the log.
const IN_USE: &str = "log in use";

/// An open database.
#[derive(Debug)]
pub struct Opened {
    /// The store.
    pub store: Sqlite,
    /// Whether the file was made just now.
    pub created: bool,
    /// The absolute path of the file.
    pub path: PathBuf,
}

/// Why the database could not be opened; each text names the file and the fix.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder can't be made, read or written.
    #[error("the data folder {0} can't be used: {trouble}", trouble = trouble(.1))]
    Folder(PathBuf, io::Error),
    /// Another process has the database.
    #[error("the data folder {0} is in use by {1}; stop that process, or give this one another file in database.dsn")]
    InUse(PathBuf, String),
    /// The folder is on a file system whose locks and syncs can't be relied on.
    #[error(
        "the data folder {0} is on a {1} file system, where SQLite can lose or repeat ids; choose a local disk in database.dsn"
    )]
    Network(PathBuf, &'static str),
    /// A new database would start at 1 beside another one's data.
    #[error(
        "{0} does not exist, but its folder holds data of idgen ({1}): a new database would give ids again; name that file in database.dsn, or choose an empty folder"
    )]
    OtherData(PathBuf, String),
    /// The database that was here has been deleted.
    #[error(
        "{0} is gone, though a database was made there before: a new one would give ids again; put the file back or restore a copy and run after-restore, or choose an empty folder in database.dsn"
    )]
    Gone(PathBuf),
    /// The last process did not end cleanly, and the log it left behind is gone: what it had confirmed last is lost.
    #[error(
        "{0}-wal is gone, though it held what was confirmed last: ids would repeat; put it back, or if this is a restored copy run after-restore"
    )]
    LogGone(PathBuf),
    /// The file is something else.
    #[error("{0} is not a database of idgen ({1}) and was left as it is; name another file in database.dsn")]
    Foreign(PathBuf, String),
    /// The file is damaged.
    #[error("{0} is damaged ({1}); restore a copy and run after-restore")]
    Corrupt(PathBuf, String),
    /// The file was written by a newer program.
    #[error("{0} was written by a newer idgen (schema {1}, this program knows {2}); run that version or a later one")]
    Newer(PathBuf, i64, i64),
    /// The file can't be written.
    #[error("{0} can't be written: {1}; make the file and its file system writable for this user")]
    NotWritable(PathBuf, io::Error),
    /// Anything else that SQLite says.
    #[error("{0} can't be opened: {1}")]
    Sql(PathBuf, String),
}

impl OpenError {
    /// Whether it may pass without anybody putting the configuration or the data right: trying again makes sense.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::InUse(..) | Self::Sql(..) => true,
            Self::Folder(_, error) | Self::NotWritable(_, error) => {
                matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Self::Network(..)
            | Self::OtherData(..)
            | Self::Gone(_)
            | Self::LogGone(_)
            | Self::Foreign(..)
            | Self::Corrupt(..)
            | Self::Newer(..) => false,
        }
    }
}

/// The lock on the database, held as long as it lives.
pub(super) type Lock = Flock<File>;

/// Which file was opened.
#[derive(Debug)]
pub(super) struct Place {
    /// Its absolute path.
    pub(super) path: PathBuf,
    /// Its write-ahead log.
    log: PathBuf,
    /// Device and inode: they tell a file that was put in its place.
    identity: (u64, u64),
}

impl Place {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), log: beside(path, "-wal"), identity: identity(path)? })
    }

    /// Checks that the path still leads to the file that is open, and that its log is there. Call it inside a
    /// transaction: SQLite keeps the log as long as one runs.
    pub(super) fn check(&self) -> Result<(), String> {
        let path = self.path.display();
        match identity(&self.path) {
            Ok(identity) if identity == self.identity => {}
            Ok(_) => return Err(format!("{path} has been replaced while in use; stop the server, run after-restore")),
            Err(error) => return Err(format!("{path} has been taken away while in use ({error}); put it back")),
        }
        if self.log.exists() { Ok(()) } else { Err(format!("the log of {path} has been deleted while in use")) }
    }

    /// What the file system does to durability.
    pub(super) fn weakness(&self) -> Option<String> {
        let kind = nix::sys::statfs::statfs(&self.path).ok()?.filesystem_type();
        let memory = matches!(i128::from(kind.0), 0x0102_1994 | 0x8584_58f6);
        memory.then(|| format!("{} is on a file system in memory", self.path.display()))
    }
}

/// What keeps a folder from being used, and the fix.
fn trouble(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            "it, or what it lies in, is a file; name a folder with --data, or the file of the database in database.dsn"
                .into()
        }
        _ => format!("{error}; make it writable for this user or choose another in database.dsn"),
    }
}

pub(super) async fn open(path: &Path, statement_timeout: Duration, restored: bool) -> Result<Opened, OpenError> {
    let (path, folder) = prepare(path)?;
    let (mut lock, Noted { made: made_before, in_use }) = lock(&path, &folder)?;
    let created = !path.try_exists().map_err(|error| OpenError::Folder(folder.clone(), error))?;
    if created {
        refuse_other_data(&path, &folder, made_before)?;
        create(&path, &folder).await?;
    } else {
        inspect(&path)?;
        if in_use && !restored && !beside(&path, "-wal").exists() {
            return Err(OpenError::LogGone(path));
        }
    }
    let unusable = |error| OpenError::Folder(folder.clone(), error);
    remember(&mut lock, &path).map_err(unusable)?;
    let pool = connect(&path, statement_timeout).await?;
    if beside(&path, "-wal").exists() {
        note(&mut lock, &[MADE, IN_USE]).map_err(unusable)?;
    }
    let place = Place::new(&path).map_err(|error| OpenError::Folder(folder, error))?;
    Ok(Opened {
        store: Sqlite(Arc::new(Inner { pool, place, statement_timeout, lock: Mutex::new(lock) })),
        created,
        path,
    })
}

/// Makes the folder, checks its file system and gives the absolute paths of the file and the folder.
fn prepare(path: &Path) -> Result<(PathBuf, PathBuf), OpenError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let unusable = |error: io::Error| OpenError::Folder(folder.to_owned(), error);
    fs::create_dir_all(folder).map_err(unusable)?;
    let folder = fs::canonicalize(folder).map_err(unusable)?;
    let name = path.file_name().ok_or_else(|| unusable(io::Error::other("database.dsn names no file")))?;
    let kind = nix::sys::statfs::statfs(&folder).map_err(|error| unusable(error.into()))?.filesystem_type();
    match network_kind(i128::from(kind.0)) {
        Some(kind) => Err(OpenError::Network(folder, kind)),
        None => Ok((folder.join(name), folder)),
    }
}

/// The name of a file system that other machines or other programs stand behind.
pub(super) fn network_kind(magic: i128) -> Option<&'static str> {
    match magic & 0xffff_ffff {
        0x6969 => Some("nfs"),
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => Some("cifs"),
        0x6573_5546 => Some("fuse"),
        0x0102_1997 => Some("9p"),
        0x00c3_6400 => Some("ceph"),
        0x0bd0_0bd0 => Some("lustre"),
        0x5346_414f => Some("afs"),
        _ => None,
    }
}

/// What the lock file says of the processes before.
struct Noted {
    /// A database was made here.
    made: bool,
    /// Its log was in use, and no clean end has taken that back.
    in_use: bool,
}

/// Takes the lock; also says what the processes before have noted.
fn lock(path: &Path, folder: &Path) -> Result<(Lock, Noted), OpenError> {
    let name = beside(path, ".lock");
    let unusable = |error| OpenError::Folder(folder.to_owned(), error);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&name).map_err(unusable)?;
    let mut held = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(held) => held,
        Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
            let mut text = String::new();
            drop(file.read_to_string(&mut text));
            let holder = text.lines().find(|line| line.starts_with("pid ")).unwrap_or("another process");
            return Err(OpenError::InUse(folder.to_owned(), holder.to_owned()));
        }
        Err((_, error)) => return Err(unusable(error.into())),
    };
    let mut text = String::new();
    held.read_to_string(&mut text).map_err(unusable)?;
    let noted = |wanted: &str| text.lines().any(|line| line == wanted);
    let keep: Vec<&str> = [MADE, IN_USE].into_iter().filter(|line| noted(line)).collect();
    write_lock(&mut held, &keep).map_err(unusable)?;
    Ok((held, Noted { made: noted(MADE), in_use: noted(IN_USE) }))
}

/// Notes in the lock file that the database exists.
fn remember(lock: &mut Lock, path: &Path) -> io::Result<()> {
    note(lock, &[MADE])?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// Notes before a clean end that the log is about to go.
pub(super) fn release(lock: &mut Lock) -> io::Result<()> {
    note(lock, &[MADE])
}

fn note(lock: &mut Lock, lines: &[&str]) -> io::Result<()> {
    write_lock(lock, lines)?;
    lock.sync_all()
}

fn write_lock(lock: &mut Lock, lines: &[&str]) -> io::Result<()> {
    let text = format!("pid {}\n{}\n", std::process::id(), lines.join("\n"));
    lock.rewind()?;
    lock.write_all(text.as_bytes())?;
    lock.set_len(text.len() as u64)
}

fn refuse_other_data(path: &Path, folder: &Path, made_before: bool) -> Result<(), OpenError> {
    if made_before || beside(path, "-wal").exists() {
        return Err(OpenError::Gone(path.to_owned()));
    }
    let own = [beside(path, ".lock"), beside(path, ".new")];
    for entry in fs::read_dir(folder).map_err(|error| OpenError::Folder(folder.to_owned(), error))? {
        let entry = entry.map_err(|error| OpenError::Folder(folder.to_owned(), error))?.path();
        if own.contains(&entry) || !entry.is_file() {
            continue;
        }
        let head = head(&entry).unwrap_or_default();
        let lock_of_other = entry.extension().is_some_and(|extension| extension == "lock")
            && String::from_utf8_lossy(&head).lines().any(|line| line == MADE);
        if lock_of_other || is_ours(&head).is_ok() {
            return Err(OpenError::OtherData(path.to_owned(), entry.display().to_string()));
        }
    }
    Ok(())
}

/// Makes the database beside its place and moves it there when it is complete.
async fn create(path: &Path, folder: &Path) -> Result<(), OpenError> {
    let unusable = |error| OpenError::Folder(folder.to_owned(), error);
    let unfinished = beside(path, ".new");
    for leftover in ["", "-wal", "-shm", "-journal"].map(|suffix| beside(&unfinished, suffix)) {
        match fs::remove_file(&leftover) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unusable(error)),
            _ => {}
        }
    }
    let build = async {
        let mut connection = options(&unfinished, BUSY_TIMEOUT).create_if_missing(true).connect().await?;
        schema::migrate(&mut connection).await?;
        // The last close writes the log back into the file and removes it.
        connection.close().await
    };
    build.await.map_err(|error| OpenError::Sql(unfinished.clone(), words(&error)))?;
    File::open(&unfinished).and_then(|file| file.sync_all()).map_err(unusable)?;
    fs::rename(&unfinished, path).map_err(unusable)?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(unusable)
}

/// Looks at an existing file without SQLite: nothing is written to a file that is not ours. To be called before SQLite
/// opens it, since closing any other handle on the file would take SQLite's locks away.
fn inspect(path: &Path) -> Result<(), OpenError> {
    let head = head(path).map_err(|error| OpenError::NotWritable(path.to_owned(), error))?;
    is_ours(&head).map_err(|what| OpenError::Foreign(path.to_owned(), what.into()))?;
    // SQLite would open a read-only file without a word and fail at the first grant.
    let writable = OpenOptions::new().write(true).open(path);
    writable.map(drop).map_err(|error| OpenError::NotWritable(path.to_owned(), error))
}

fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(100);
    File::open(path)?.take(100).read_to_end(&mut head)?;
    Ok(head)
}

/// Whether a file that starts with `head` is a database of ours; else what it is.
fn is_ours(head: &[u8]) -> Result<(), &'static str> {
    if head.is_empty() {
        return Err("the file is empty");
    }
    if !head.starts_with(b"SQLite format 3\0") {
        return Err("it is not a SQLite file");
    }
    let id = head.get(68..72).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).map(u32::from_be_bytes);
    if id.map(i64::from) == Some(APPLICATION_ID) { Ok(()) } else { Err("it belongs to another program") }
}

fn options(path: &Path, busy_timeout: Duration) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(false)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(busy_timeout)
        .disable_statement_logging()
}

/// Opens the one connection, checks the file and brings it up to date.
async fn connect(path: &Path, statement_timeout: Duration) -> Result<SqlitePool, OpenError> {
    let options = options(path, BUSY_TIMEOUT.min(statement_timeout / 2));
    let failed = |error: sqlx::Error| match code(&error) {
        Some(11 | 26) => OpenError::Corrupt(path.to_owned(), words(&error)),
        _ => OpenError::Sql(path.to_owned(), words(&error)),
    };
    let mut first = options.clone().connect().await.map_err(failed)?;
    let version = schema::applied(&mut first).await.map_err(failed)?;
    if version > schema::known() {
        return Err(OpenError::Newer(path.to_owned(), version, schema::known()));
    }
    let verdict: String = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(&mut first).await.map_err(failed)?;
    if verdict != "ok" {
        return Err(OpenError::Corrupt(path.to_owned(), verdict));
    }
    schema::migrate(&mut first).await.map_err(failed)?;
    first.close().await.map_err(failed)?;
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .min_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .acquire_timeout(BUSY_TIMEOUT)
        .test_before_acquire(false)
        // SQLite ends a transaction by itself on some errors, such as a full disk, and the driver goes on believing in
        // it: such a connection is closed, or nothing could ever begin on it again.
        .before_acquire(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) }))
        .after_connect(|connection, _| Box::pin(read_back(connection)))
        .connect_with(options);
    pool.await.map_err(failed)
}

/// Refuses a connection on which the settings that durability rests on did not take.
async fn read_back(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let journal: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut *connection).await?;
    let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut *connection).await?;
    if journal == "wal" && synchronous == 2 {
        Ok(())
    } else {
        let found = format!("journal_mode is {journal} and synchronous {synchronous}, not WAL and FULL");
        Err(sqlx::Error::Configuration(found.into()))
    }
}

/// SQLite's primary result code.
pub(super) fn code(error: &sqlx::Error) -> Option<u32> {
    let extended: u32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(extended & 0xff)
}

/// An error in words for people, in one line.
pub(super) fn words(error: &sqlx::Error) -> String {
    match (error, code(error)) {
        (_, Some(13)) => "the disk is full; free some space".into(),
        // In our own words: SQLite's contain one that clients take for a replica's refusal.
        (_, Some(8)) => "the file can't be written; look at its permissions and its mount".into(),
        (sqlx::Error::PoolTimedOut, _) => "the one connection was busy too long".into(),
        (sqlx::Error::Database(database), _) => database.message().replace('\n', " "),
        _ => error.to_string().replace('\n', " "),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
