//! Keeping this node's catalogue like the store's.
//!
//! Rows carry a revision, unique over all tags and raised by every change, so a poll reads what is newer than the newest
//! row seen. A row that has vanished has no revision to show: the number of rows tells, and then all are read and the tags
//! without a row are closed. The engines' own fences hold whatever a poll misses.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::creation::difference;
use super::{Declared, Entry, Error, Router, UNIQUE, Wanted};
use crate::clock::Boot;
use crate::engine::{Engine, Refusal};
use crate::glob::glob;
use crate::health::{Change, Part, State};
use crate::ids::TagName;
use crate::store::{Alteration, EngineKind, Order, Row, StoreError};

/// How often the settings of the store are looked at while it is used.
const LOOK_AT_SETTINGS: Duration = Duration::from_secs(5);

impl Router {
    /// Reads the whole catalogue and creates the declared tags that don't exist; gives warnings about declared tags that
    /// stand otherwise in the catalogue, which wins.
    ///
    /// # Errors
    /// Why the store could not do it, or which declared tag is wrong.
    pub async fn load(&self) -> Result<Vec<String>, Error> {
        self.refresh().await.map_err(|error| Refusal::Backend(error.text))?;
        let strict = |entry: &Arc<Entry>| entry.row().definition.order == Order::Strict && !entry.retired();
        let strict = self.catalogue.all().into_iter().filter(strict).map(|entry| entry.name().clone());
        self.tell_of_closed_strict(&strict.collect::<Vec<_>>());
        if self.config.rules.iter().any(|rule| rule.engine == EngineKind::Snowflake) {
            self.parts.snowflake.want();
        }
        let mut warnings = Vec::new();
        for declared in &self.config.declared {
            warnings.extend(self.declare(declared).await?);
        }
        Ok(warnings)
    }

    async fn declare(&self, declared: &Declared) -> Result<Option<String>, Error> {
        let Some(tag) = TagName::new(declared.tag.as_bytes()) else {
            return Err(Error::Conflict(format!("tags.declared: '{}' is not a valid tag", declared.tag)));
        };
        let wanted = declared.wanted();
        let (row, created) = self.create_row(&tag, &wanted).await?;
        let warning = if created { None } else { difference(&row, &wanted) };
        self.enter(row)?;
        Ok(warning.map(|text| format!("tags.declared: {text}; the catalogue wins")))
    }

    /// Reads what has changed in the store since the last time and applies it.
    ///
    /// # Errors
    /// Why the store could not do it; the catalogue stays as it was.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        let asked = self.parts.clock.boot();
        let rows = self.parts.store.changed_since(self.revision.load(Ordering::Relaxed)).await?;
        self.apply_all(rows);
        let count = self.parts.store.count().await?;
        if count < self.len() as u64 {
            // Before the rows are read: what is entered meanwhile is not missed in them.
            let known = self.catalogue.all();
            let rows = self.parts.store.changed_since(0).await?;
            let present: HashSet<TagName> = rows.iter().map(|row| row.tag.clone()).collect();
            self.apply_all(rows);
            for entry in known.iter().filter(|entry| !present.contains(entry.name())) {
                entry.vanish(self.store_name());
            }
        }
        self.fresh_at.store(asked.0, Ordering::Relaxed);
        Ok(())
    }

    fn apply_all(&self, rows: Vec<Row>) {
        for row in rows {
            let revision = row.revision;
            if let Some(entry) = self.find(row.tag.as_str().as_bytes()) {
                entry.apply(&row, self.now());
            } else if let Err(error) = self.enter(row) {
                tracing::warn!(%error, "a row of the catalogue could not be entered");
            }
            self.revision.fetch_max(revision, Ordering::Relaxed);
        }
    }

    /// Polls the store until `cancel`, and looks now and then at what its settings keep.
    pub async fn keep_fresh(self: Arc<Self>, cancel: CancellationToken) {
        let mut looked = self.parts.clock.boot();
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(self.config.refresh) => {}
            }
            self.poll().await;
            let now = self.parts.clock.boot();
            if now.since(looked) >= LOOK_AT_SETTINGS {
                looked = now;
                self.look_at_settings().await;
            }
        }
    }

    /// Settings can change under a running node, or a failover lead to a server that has others: from then on the weaker
    /// guarantee is told and strict tags are closed. That they are right again is believed at the next start only, since
    /// what was confirmed meanwhile may still be lost.
    pub(super) async fn look_at_settings(&self) {
        if self.guarantee() == UNIQUE {
            // A store that does not answer confirms nothing either.
            let Ok(weaknesses) = self.parts.store.durability().await else { return };
            if weaknesses.is_empty() {
                return;
            }
            self.weakened.store(true, Ordering::Relaxed);
            let store = self.store_name();
            self.parts.metrics.store(store).durable.set(0);
            tracing::error!(
                store,
                error_kind = "system",
                "the settings have changed and may lose acknowledged grants: {}; strict tags are closed until idgen is \
                 restarted on settings that keep them",
                weaknesses.join("; ")
            );
        }
        // At every look: a tag that was being entered at that moment is not missed.
        let Some(refusal) = self.strict_refusal() else { return };
        for entry in self.catalogue.all() {
            if let Engine::Strict(strict) = entry.engine() {
                strict.close(&refusal);
            }
        }
    }

    /// One poll, whose answer is the catalogue's state of health. While grants fail, the store is asked about those too:
    /// no request need come to show that they work again.
    pub(super) async fn poll(&self) {
        match self.refresh().await {
            Ok(()) => self.tell(State::Up),
            Err(error) => self.tell(State::Down(error.text)),
        }
        self.parts.supply.probe().await;
    }

    /// How old what this node knows of the tags is; `None` before the first look.
    pub fn catalogue_age(&self) -> Option<Duration> {
        let fresh_at = Some(self.fresh_at.load(Ordering::Relaxed)).filter(|&fresh_at| fresh_at > 0)?;
        Some(self.parts.clock.boot().since(Boot(fresh_at)))
    }

    /// Records how reading the catalogue went, and logs it when that is news.
    fn tell(&self, now: State) {
        let reason = if let State::Down(reason) = &now { reason.clone() } else { String::new() };
        match self.parts.health.report(Part::Catalogue, now) {
            Change::None => {}
            Change::Failed => {
                let store = self.store_name();
                tracing::warn!(store, error_kind = "system", "the catalogue can't be read: {reason}");
            }
            Change::Recovered => tracing::info!(store = self.store_name(), "the catalogue can be read again"),
        }
    }

    /// Which engine a new tag of this name gets by the rules.
    pub(super) fn engine_by_rules(&self, tag: &TagName) -> EngineKind {
        let rule = self.config.rules.iter().find(|rule| glob(rule.pattern.as_bytes(), tag.as_str().as_bytes()));
        rule.map_or(EngineKind::Segment, |rule| rule.engine)
    }
}

impl Declared {
    fn wanted(&self) -> Wanted {
        Wanted {
            engine: self.engine,
            order: self.order,
            start: self.start,
            fields: Alteration {
                step: self.step,
                min_step: self.min_step,
                max_step: self.max_step,
                id_limit: self.max,
                qps: self.qps,
                burst: self.burst,
                critical: self.critical,
                description: self.description.clone(),
            },
        }
    }
}
