//! [`View`]: what a person has chosen to see, changed key by key.

use std::sync::Arc;

use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::model::{PodKey, Row};
use super::order::{Column, Filter, sort};
use super::status::Clean;

/// The longest filter: more than a line shows.
const LONGEST_FILTER: usize = 200;

/// What is to be done after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    /// Nothing has changed.
    Nothing,
    /// The frame is to be drawn again.
    Draw,
    /// So it is, and every cell of it: what is on the screen may be anything.
    Clear,
    /// The terminal is to be left to the shell for a while.
    Suspend,
    /// The end.
    Quit,
}

/// What a person has chosen.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct View {
    pub(super) sort: Column,
    pub(super) reverse: bool,
    pub(super) filter: String,
    /// Whether the filter is being written.
    pub(super) editing: bool,
    /// What it was before that.
    before: String,
    /// The one node that is shown, out of several.
    pub(super) node: Option<usize>,
    /// Only pods with CPUs of their own.
    pub(super) owners: bool,
    /// Each container in a line of its own.
    pub(super) containers: bool,
    pub(super) paused: bool,
    pub(super) help: bool,
    /// The chosen pod: it stays chosen wherever it comes to stand.
    chosen: Option<(usize, PodKey)>,
    /// Where it stood last, for when it is gone.
    place: usize,
}

// === impl View ===

impl View {
    pub(super) fn new(sort: Column, reverse: bool, filter: &str) -> Self {
        Self {
            sort,
            reverse,
            filter: Clean::new(filter).to_string(),
            editing: false,
            before: String::new(),
            node: None,
            owners: false,
            containers: false,
            paused: false,
            help: false,
            chosen: None,
            place: 0,
        }
    }

    /// The rows that are wanted, in the order that is wanted; `names` are those of the nodes.
    pub(super) fn rows(&self, mut rows: Vec<Arc<Row>>, names: &[String]) -> Vec<Arc<Row>> {
        let filter = Filter::new(&self.filter);
        rows.retain(|row| {
            self.node.is_none_or(|node| node == row.node)
                && (!self.owners || row.total.own.is_some())
                && filter.takes(row, names)
        });
        sort(&mut rows, self.sort, self.reverse, names);
        rows
    }

    /// Which rows are wanted, and in which order: as long as this stays, so do they.
    pub(super) fn wants(&self) -> impl PartialEq + use<> {
        (
            self.sort,
            self.reverse,
            self.filter.clone(),
            self.node,
            self.owners,
        )
    }

    /// Where the chosen row stands among these; the nearest one, if it is gone.
    pub(super) fn chosen(&self, rows: &[Arc<Row>]) -> Option<usize> {
        let same = |row: &Arc<Row>| {
            self.chosen
                .as_ref()
                .is_some_and(|(node, key)| *node == row.node && *key == row.key)
        };
        let last = rows.len().checked_sub(1)?;
        Some(rows.iter().position(same).unwrap_or(self.place.min(last)))
    }

    /// Takes note of where the chosen row stands now.
    pub(super) fn settle(&mut self, rows: &[Arc<Row>]) {
        if let Some(at) = self.chosen(rows) {
            self.choose(rows, at);
        }
    }

    fn choose(&mut self, rows: &[Arc<Row>], at: usize) {
        let at = at.min(rows.len().saturating_sub(1));
        self.place = at;
        self.chosen = rows.get(at).map(|row| (row.node, row.key.clone()));
    }

    fn go(&mut self, rows: &[Arc<Row>], forward: bool, by: usize) -> Done {
        let at = self.chosen(rows).unwrap_or_default();
        self.choose(
            rows,
            if forward {
                at.saturating_add(by)
            } else {
                at.saturating_sub(by)
            },
        );
        Done::Draw
    }

    /// Takes a key. `rows` are those on the screen, of which a page holds so many; there are so many nodes.
    pub(super) fn key(
        &mut self,
        key: &KeyEvent,
        rows: &[Arc<Row>],
        page: usize,
        nodes: usize,
    ) -> Done {
        if key.kind == KeyEventKind::Release {
            return Done::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Done::Quit,
                KeyCode::Char('l') => Done::Clear,
                KeyCode::Char('z') => Done::Suspend,
                KeyCode::Char('u') if self.editing => {
                    self.filter.clear();
                    Done::Draw
                }
                _ => Done::Nothing,
            };
        }
        if self.editing {
            return self.edit(key.code);
        }
        if self.help {
            // Whatever is pressed, the table comes back; what ends the program still does.
            self.help = false;
            return if key.code == KeyCode::Char('q') {
                Done::Quit
            } else {
                Done::Draw
            };
        }
        match key.code {
            KeyCode::Char('q') => return Done::Quit,
            KeyCode::Esc if self.filter.is_empty() && self.node.is_none() => return Done::Quit,
            KeyCode::Esc => {
                self.filter.clear();
                self.node = None;
            }
            KeyCode::Up | KeyCode::Char('k') => return self.go(rows, false, 1),
            KeyCode::Down | KeyCode::Char('j') => return self.go(rows, true, 1),
            KeyCode::PageUp => return self.go(rows, false, page.max(1)),
            KeyCode::PageDown | KeyCode::Char(' ') => return self.go(rows, true, page.max(1)),
            KeyCode::Home | KeyCode::Char('g') => return self.go(rows, false, usize::MAX),
            KeyCode::End | KeyCode::Char('G') => return self.go(rows, true, usize::MAX),
            KeyCode::Char('s') | KeyCode::Right => {
                (self.sort, self.reverse) = (self.sort.next(true), false);
            }
            KeyCode::Char('S') | KeyCode::Left => {
                (self.sort, self.reverse) = (self.sort.next(false), false);
            }
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('/') => (self.editing, self.before) = (true, self.filter.clone()),
            KeyCode::Char('n') | KeyCode::Tab => self.node = next(self.node, nodes, true),
            KeyCode::Char('N') | KeyCode::BackTab => self.node = next(self.node, nodes, false),
            KeyCode::Enter => {
                let chosen = self
                    .chosen(rows)
                    .and_then(|at| rows.get(at))
                    .map(|row| row.node);
                self.node = chosen.filter(|_| nodes > 1).or(self.node);
            }
            KeyCode::Char('o') => self.owners = !self.owners,
            KeyCode::Char('c') => self.containers = !self.containers,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('?' | 'h') => self.help = true,
            _ => return Done::Nothing,
        }
        Done::Draw
    }

    fn edit(&mut self, code: KeyCode) -> Done {
        match code {
            KeyCode::Enter => self.editing = false,
            KeyCode::Esc => (self.editing, self.filter) = (false, std::mem::take(&mut self.before)),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) if !letter.is_control() && self.filter.len() < LONGEST_FILTER => {
                self.filter.push(letter);
            }
            _ => return Done::Nothing,
        }
        Done::Draw
    }
}

/// The next node, or all of them after the last one.
fn next(node: Option<usize>, nodes: usize, forward: bool) -> Option<usize> {
    let last = nodes.checked_sub(1).filter(|last| *last > 0)?;
    match (node, forward) {
        (None, true) => Some(0),
        (None, false) => Some(last),
        (Some(at), true) => Some(at + 1).filter(|next| *next <= last),
        (Some(at), false) => at.checked_sub(1),
    }
}
