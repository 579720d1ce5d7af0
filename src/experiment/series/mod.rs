//! Runs of a training job as a Prometheus has seen them, when nobody carried them out as an experiment.
//!
//! 1. [`cases`] asks which cases there were, [`presence`] who took part, [`QueriedPods`] what they used: texts in PromQL.
//! 2. [`read_answer`] makes [`Series`] of what is answered. [`SeenJob`] is who was seen when, [`SeriesUsage`] what they used.
//! 3. An [`ObservedRun`] puts both together, and [`outcome`] compares several of them. From there on everything is as for an
//!    experiment of [`results`](crate::experiment::results): the same findings, the same page.
//!
//! Invariant: what no series tells of is `None`, is said to be missing, and is never 0.

mod answer;
mod job;
mod outcome;
mod query;
mod run;
mod time;
mod usage;

pub use answer::{Answer, AnswerError, Series, read_answer};
pub use job::{NoRun, RunEnd, SeenJob};
pub use outcome::outcome;
pub use query::{
    Measure, QueriedPods, StepMetric, Subject, TaskLabel, cases, presence, reaches_back, scraped,
    scrapes, whether,
};
pub use run::ObservedRun;
pub use time::{seconds_of, time};
pub use usage::SeriesUsage;
