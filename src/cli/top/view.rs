//! [`View`]: the user's choices, which keys change.

use std::sync::Arc;

use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::order::{Column, Filter, sort};
use crate::client::{PodKey, PodRow, SafeText};

/// The longest filter, in bytes: more than a line shows.
const MAX_FILTER_BYTES: usize = 200;

/// The action that a key asks for, in increasing order: of two actions, the greater includes the
/// smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KeyAction {
    Nothing,
    /// Draw the frame again.
    Draw,
    /// Draw every cell again, because the content of the screen is unknown.
    Clear,
    /// Leave the terminal to the shell until that resumes the command.
    Suspend,
    /// End the command.
    Quit,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct View {
    pub(super) sort: Column,
    pub(super) reverse: bool,
    pub(super) filter: String,
    /// Whether the user is typing the filter.
    pub(super) editing: bool,
    /// The filter before the user began to type.
    previous_filter: String,
    /// The index of the only node that is shown; `None` shows all nodes.
    pub(super) node: Option<usize>,
    /// Whether only pods with exclusive CPUs are shown.
    pub(super) exclusive_only: bool,
    /// Whether each container has a separate line.
    pub(super) containers: bool,
    pub(super) paused: bool,
    pub(super) help: bool,
    /// The selected pod, also when it has moved to another line.
    selected: Option<(usize, PodKey)>,
    /// The last position of the selected pod, for the selection after it is gone.
    position: usize,
}

// === impl View ===

impl View {
    pub(super) fn new(sort: Column, reverse: bool, filter: &str) -> Self {
        Self {
            sort,
            reverse,
            filter: SafeText::new(filter).to_string(),
            editing: false,
            previous_filter: String::new(),
            node: None,
            exclusive_only: false,
            containers: false,
            paused: false,
            help: false,
            selected: None,
            position: 0,
        }
    }

    /// The rows that the view selects, in its order; `names` are the names of the nodes.
    pub(super) fn rows(&self, mut rows: Vec<Arc<PodRow>>, names: &[String]) -> Vec<Arc<PodRow>> {
        let filter = Filter::new(&self.filter);
        rows.retain(|row| {
            self.node.is_none_or(|node| node == row.node)
                && (!self.exclusive_only || row.total.assigned.is_some())
                && filter.passes(row, names)
        });
        sort(&mut rows, self.sort, self.reverse, names);
        rows
    }

    /// The choices that decide which rows are shown, and in which order.
    pub(super) fn selection(&self) -> impl PartialEq + use<> {
        (
            self.sort,
            self.reverse,
            self.filter.clone(),
            self.node,
            self.exclusive_only,
        )
    }

    /// The position of the selected row, or the nearest one if it is gone.
    pub(super) fn selected(&self, rows: &[Arc<PodRow>]) -> Option<usize> {
        let is_selected = |row: &Arc<PodRow>| {
            self.selected
                .as_ref()
                .is_some_and(|(node, key)| *node == row.node && *key == row.key)
        };
        let last = rows.len().checked_sub(1)?;
        Some(
            rows.iter()
                .position(is_selected)
                .unwrap_or(self.position.min(last)),
        )
    }

    /// Records the position of the selected row after the rows have changed.
    pub(super) fn settle(&mut self, rows: &[Arc<PodRow>]) {
        if let Some(position) = self.selected(rows) {
            self.select(rows, position);
        }
    }

    fn select(&mut self, rows: &[Arc<PodRow>], position: usize) {
        let position = position.min(rows.len().saturating_sub(1));
        self.position = position;
        self.selected = rows.get(position).map(|row| (row.node, row.key.clone()));
    }

    /// Moves the selection by a number of rows.
    fn go(&mut self, rows: &[Arc<PodRow>], forward: bool, by: usize) {
        let position = self.selected(rows).unwrap_or_default();
        let position = if forward {
            position.saturating_add(by)
        } else {
            position.saturating_sub(by)
        };
        self.select(rows, position);
    }

    /// Handles a key. `rows` are all rows of the table, `page` is the number of rows on the screen.
    pub(super) fn key(
        &mut self,
        key: &KeyEvent,
        rows: &[Arc<PodRow>],
        page: usize,
        nodes: usize,
    ) -> KeyAction {
        if key.kind == KeyEventKind::Release {
            return KeyAction::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return self.control_key(key.code);
        }
        if self.editing {
            return self.edit(key.code);
        }
        if self.help {
            // Every key returns to the table, except that q ends the command as usual.
            self.help = false;
            return if key.code == KeyCode::Char('q') {
                KeyAction::Quit
            } else {
                KeyAction::Draw
            };
        }
        match key.code {
            KeyCode::Char('q') => return KeyAction::Quit,
            KeyCode::Esc if self.filter.is_empty() && self.node.is_none() => {
                return KeyAction::Quit;
            }
            KeyCode::Esc => {
                self.filter.clear();
                self.node = None;
            }
            KeyCode::Up | KeyCode::Char('k') => self.go(rows, false, 1),
            KeyCode::Down | KeyCode::Char('j') => self.go(rows, true, 1),
            KeyCode::PageUp => self.go(rows, false, page.max(1)),
            KeyCode::PageDown | KeyCode::Char(' ') => self.go(rows, true, page.max(1)),
            KeyCode::Home | KeyCode::Char('g') => self.go(rows, false, usize::MAX),
            KeyCode::End | KeyCode::Char('G') => self.go(rows, true, usize::MAX),
            KeyCode::Char('s') | KeyCode::Right => {
                (self.sort, self.reverse) = (self.sort.next(true), false);
            }
            KeyCode::Char('S') | KeyCode::Left => {
                (self.sort, self.reverse) = (self.sort.next(false), false);
            }
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('/') => {
                (self.editing, self.previous_filter) = (true, self.filter.clone());
            }
            KeyCode::Char('n') | KeyCode::Tab => self.node = next(self.node, nodes, true),
            KeyCode::Char('N') | KeyCode::BackTab => self.node = next(self.node, nodes, false),
            KeyCode::Enter => {
                let selected = self.selected(rows).and_then(|position| rows.get(position));
                let node = selected.map(|row| row.node);
                self.node = node.filter(|_| nodes > 1).or(self.node);
            }
            KeyCode::Char('o') => self.exclusive_only = !self.exclusive_only,
            KeyCode::Char('c') => self.containers = !self.containers,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('?' | 'h') => self.help = true,
            _ => return KeyAction::Nothing,
        }
        KeyAction::Draw
    }

    /// Handles a key that is pressed with Ctrl.
    fn control_key(&mut self, code: KeyCode) -> KeyAction {
        match code {
            KeyCode::Char('c') => KeyAction::Quit,
            KeyCode::Char('l') => KeyAction::Clear,
            KeyCode::Char('z') => KeyAction::Suspend,
            KeyCode::Char('u') if self.editing => {
                self.filter.clear();
                KeyAction::Draw
            }
            _ => KeyAction::Nothing,
        }
    }

    /// Handles a key while the user types the filter.
    fn edit(&mut self, code: KeyCode) -> KeyAction {
        match code {
            KeyCode::Enter => self.editing = false,
            KeyCode::Esc => {
                (self.editing, self.filter) = (false, std::mem::take(&mut self.previous_filter));
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter)
                if !letter.is_control() && self.filter.len() < MAX_FILTER_BYTES =>
            {
                self.filter.push(letter);
            }
            _ => return KeyAction::Nothing,
        }
        KeyAction::Draw
    }
}

/// The next or the previous node. After the last one come all nodes.
fn next(node: Option<usize>, nodes: usize, forward: bool) -> Option<usize> {
    let last = nodes.checked_sub(1).filter(|last| *last > 0)?;
    match (node, forward) {
        (None, true) => Some(0),
        (None, false) => Some(last),
        (Some(node), true) => Some(node + 1).filter(|next| *next <= last),
        (Some(node), false) => node.checked_sub(1),
    }
}
