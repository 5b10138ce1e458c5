//! The store behind the tier: how it is opened, and what its errors mean here.
//!
//! An error of the library may repeat what a server answered, and servers repeat access keys. So none is ever shown:
//! [`StoreError`] is made of its kind alone.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use opendal::layers::{ConcurrentLimitLayer, RetryLayer, TimeoutLayer};
use opendal::{Buffer, ErrorKind, Operator, Writer, services};

use super::credentials::Credentials;
use super::uri::{Place, SharedUri};
use super::{OpenError, PIECE_BYTES};

/// One request that only asks; the caller's deadline is usually shorter.
pub(super) const ASK_TIME: Duration = Duration::from_secs(5);
/// One piece of bytes, either way.
const PIECE_TIME: Duration = Duration::from_secs(10);
/// Tries of one request.
const TRIES: usize = 3;
/// Before the second try; then twice as long.
const RETRY_DELAY: Duration = Duration::from_millis(20);
/// Parts of one upload under way at once, each of [`PIECE_BYTES`] at least.
const UPLOADS: usize = 2;
/// S3 refuses smaller parts.
const UPLOAD_PART_BYTES: usize = 8 << 20;
/// Unfinished files of a filesystem, out of the way of whoever lists chunks.
const FILES_UNDER_WAY: &str = ".tender-unfinished";

/// Why the store did not do what it was asked to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum StoreError {
    /// There is no such object.
    #[error("it is not there: does the bucket or folder exist?")]
    NotFound,
    /// Credentials are missing, wrong, or not enough.
    #[error("it refuses: are the credentials right, and may they read, write, list and delete there?")]
    Denied,
    /// Somebody else wrote the object first.
    #[error("the object is there already")]
    Exists,
    /// The object ends before the range that was asked for.
    #[error("the object is shorter than expected")]
    Short,
    /// The bucket, its region, or another setting is wrong.
    #[error("it says that a setting is wrong: are the bucket and its region the ones of --shared-uri?")]
    Settings,
    /// Too many requests.
    #[error("it asks for fewer requests")]
    Throttled,
    /// The store cannot do this at all.
    #[error("it cannot do what is needed")]
    Unsupported,
    /// No connection, a timeout, a fault of its own.
    #[error("it does not answer, or with an error: is it reachable and healthy?")]
    Away,
}

impl From<opendal::Error> for StoreError {
    fn from(error: opendal::Error) -> Self {
        // Not the error itself, see above.
        tracing::trace!(kind = ?error.kind(), "the shared store did not do what it was asked to");
        match error.kind() {
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::PermissionDenied => Self::Denied,
            ErrorKind::AlreadyExists | ErrorKind::ConditionNotMatch | ErrorKind::Conflict => Self::Exists,
            ErrorKind::RangeNotSatisfied => Self::Short,
            ErrorKind::ConfigInvalid => Self::Settings,
            ErrorKind::RateLimited => Self::Throttled,
            ErrorKind::Unsupported => Self::Unsupported,
            _ => Self::Away,
        }
    }
}

/// Objects by name.
#[derive(Clone, Debug)]
pub(super) struct Store {
    /// For small questions and reads: a long upload never makes them wait.
    reads: Operator,
    /// For chunks.
    writes: Operator,
    /// For what names a namespace: it must outlive its chunks.
    names: Operator,
    can_list: bool,
}

impl Store {
    pub(super) fn open(
        uri: &SharedUri,
        credentials: &Credentials,
        max_requests: usize,
    ) -> Result<Self, OpenError> {
        match &uri.place {
            Place::Files(folder) => Self::files(uri, folder, max_requests),
            Place::Bucket { bucket, prefix, endpoint, region, virtual_host } => {
                let mut s3 = services::S3::default().bucket(bucket).root(prefix);
                if let Some(endpoint) = endpoint {
                    s3 = s3.endpoint(endpoint);
                }
                if let Some(region) = region {
                    s3 = s3.region(region);
                }
                if *virtual_host {
                    s3 = s3.enable_virtual_host_style();
                }
                if let Some((id, secret)) = &credentials.access_key {
                    s3 = s3.access_key_id(id).secret_access_key(secret);
                }
                if let Some(token) = &credentials.session_token {
                    s3 = s3.session_token(token);
                }
                let operator = Operator::new(s3).map_err(|_| OpenError::unusable(uri, S3_ADVICE))?;
                Ok(Self::same(&operator, max_requests))
            }
            Place::Redis { endpoint, username, db, prefix, ttl } => {
                let redis = || {
                    let redis = services::Redis::default()
                        .endpoint(endpoint)
                        .db(*db)
                        .root(prefix)
                        .connection_pool_max_size(max_requests.max(1));
                    let username = username.as_deref().or(credentials.username.as_deref());
                    redis
                        .username(username.unwrap_or_default())
                        .password(credentials.password.as_deref().unwrap_or_default())
                };
                // Fails for an address only: nothing connects before the first request.
                let failed = |_| OpenError::unusable(uri, "write redis://HOST:PORT/DB");
                let names = Operator::new(redis()).map_err(failed)?;
                let chunks = Operator::new(redis().default_ttl(*ttl)).map_err(failed)?;
                Ok(Self::of(&chunks, &names, max_requests))
            }
            Place::Memory => {
                let operator = Operator::new(services::Memory::default())
                    .map_err(|_| OpenError::unusable(uri, "there is no memory store"))?;
                Ok(Self::same(&operator, max_requests))
            }
        }
    }

    fn files(uri: &SharedUri, folder: &Path, max_requests: usize) -> Result<Self, OpenError> {
        // Were it made here, a filesystem that is not mounted would fill this host's own disk.
        if !folder.is_dir() {
            return Err(OpenError::unusable(uri, "there is no such folder; mount or make it first"));
        }
        let (root, unfinished) = (folder.to_string_lossy(), folder.join(FILES_UNDER_WAY));
        let files = services::Fs::default().root(&root).atomic_write_dir(&unfinished.to_string_lossy());
        let operator = Operator::new(files).map_err(|_| {
            OpenError::unusable(uri, "the folder cannot be written; give its user the right to")
        })?;
        Ok(Self::same(&operator, max_requests))
    }

    /// The same operator for everything.
    pub(super) fn same(operator: &Operator, max_requests: usize) -> Self {
        Self::of(operator, operator, max_requests)
    }

    fn of(chunks: &Operator, names: &Operator, max_requests: usize) -> Self {
        let layered = |operator: &Operator| {
            operator
                .clone()
                .layer(TimeoutLayer::new().with_timeout(ASK_TIME).with_io_timeout(PIECE_TIME))
                .layer(
                    RetryLayer::new()
                        .with_max_times(TRIES - 1)
                        .with_min_delay(RETRY_DELAY)
                        .with_jitter()
                        .with_notify(|_: opendal::layers::RetryEvent<'_>| {}),
                )
                .layer(ConcurrentLimitLayer::new(max_requests.max(1)))
        };
        let can_list = chunks.info().capability().list;
        Self { reads: layered(chunks), writes: layered(chunks), names: layered(names), can_list }
    }

    /// The same operator for everything, as if it could not list.
    #[cfg(test)]
    pub(super) fn unlisted(operator: &Operator, max_requests: usize) -> Self {
        Self { can_list: false, ..Self::same(operator, max_requests) }
    }

    /// The size of an object, if it is there.
    pub(super) async fn bytes_of(&self, path: &str) -> Result<Option<u64>, StoreError> {
        match self.reads.stat(path).await.map_err(StoreError::from) {
            Ok(metadata) => Ok(Some(metadata.content_length())),
            Err(StoreError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Exactly these bytes of an object.
    pub(super) async fn read(&self, path: &str, from: u64, to: u64) -> Result<Buffer, StoreError> {
        let piece = self.reads.read_with(path).range(from..to).await?;
        if piece.len() as u64 == to - from { Ok(piece) } else { Err(StoreError::Short) }
    }

    /// A small object that names something, if it is there.
    pub(super) async fn read_name(&self, path: &str) -> Result<Option<Vec<u8>>, StoreError> {
        match self.names.read(path).await.map_err(StoreError::from) {
            Ok(bytes) => Ok(Some(bytes.to_vec())),
            Err(StoreError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes one; where the store can, only if there is none yet.
    pub(super) async fn write_name(
        &self,
        path: &str,
        bytes: Vec<u8>,
        replace: bool,
    ) -> Result<(), StoreError> {
        let fresh = !replace && self.names.info().capability().write_with_if_not_exists;
        let write = self.names.write_with(path, bytes);
        if fresh {
            write.if_not_exists(true).await?
        } else {
            write.await?
        };
        Ok(())
    }

    /// Begins an object. It appears as a whole when it is closed, or never.
    pub(super) async fn begin(&self, path: &str, object_bytes: u64) -> Result<Upload, StoreError> {
        let part_bytes = UPLOAD_PART_BYTES.max(PIECE_BYTES);
        let mut writer = self.writes.writer_with(path);
        if self.writes.info().capability().write_can_multi && object_bytes > part_bytes as u64 {
            writer = writer.chunk(part_bytes).concurrent(UPLOADS);
        }
        if self.writes.info().capability().write_with_if_not_exists {
            writer = writer.if_not_exists(true);
        }
        Ok(Upload(writer.await?))
    }

    pub(super) async fn delete(&self, path: &str) -> Result<(), StoreError> {
        Ok(self.writes.delete(path).await?)
    }

    /// Whether [`Store::folders`] can work. Where it cannot, objects end by themselves.
    pub(super) fn can_list(&self) -> bool {
        self.can_list
    }

    /// Names of the folders in a folder.
    pub(super) async fn folders(&self, path: &str) -> Result<Vec<String>, StoreError> {
        let entries = self.reads.list(path).await?;
        let inside = entries.iter().filter_map(|entry| entry.path().strip_prefix(path)?.strip_suffix('/'));
        Ok(inside.filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_owned).collect())
    }

    /// Deletes a folder and all that is in it.
    pub(super) async fn delete_folder(&self, path: &str) -> Result<(), StoreError> {
        Ok(self.writes.delete_with(path).recursive(true).await?)
    }
}

const S3_ADVICE: &str = "write s3://BUCKET/PREFIX?region=NAME; the region may also come from AWS_REGION";

/// An object on its way.
pub(super) struct Upload(Writer);

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Upload")
    }
}

impl Upload {
    pub(super) async fn write(&mut self, piece: Bytes) -> Result<(), StoreError> {
        Ok(self.0.write(piece).await?)
    }
    pub(super) async fn close(mut self) -> Result<(), StoreError> {
        match self.0.close().await {
            Ok(_) => Ok(()),
            Err(error) => {
                _ = self.0.abort().await;
                Err(error.into())
            }
        }
    }
    /// Takes back what has been sent.
    pub(super) async fn abort(mut self) {
        _ = self.0.abort().await;
    }
}
