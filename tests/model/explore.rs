//! Every history up to a size, in the order of length, so that the first violation has a shortest
//! history.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Instant;

use super::agent::{Setup, World};
use super::events::Menu;
use super::machine::{Move, describe};

/// The most violations that are reported.
const MOST: usize = 6;

/// How far to go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Things that happen.
    pub(crate) events: u32,
    /// Plans during which the agent is killed.
    pub(crate) kills: u32,
    /// Plans during which an event happens.
    pub(crate) interruptions: u32,
}

/// Totals of a search.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    /// Different states in which the agent waits.
    pub(crate) states: usize,
    /// Moves between plans, and reconciles without events.
    pub(crate) moves: usize,
}

/// A history that breaks a rule.
pub(crate) struct Violation {
    moves: Vec<Move>,
    /// The rule.
    pub(crate) rule: String,
    world: World,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.rule)?;
        for (number, step) in self.moves.iter().enumerate() {
            writeln!(f, "  {}. {step}", number + 1)?;
        }
        write!(f, "before the last of these:\n{}", describe(&self.world))
    }
}

struct Point {
    world: World,
    /// The index of the previous point, and the move from that point.
    from: Option<(usize, Move)>,
    left: Bounds,
}

/// Explores from several worlds, each reached by a few moves.
///
/// A search goes on after a violation, but not from it on, and ends with the shortest history for each rule.
pub(crate) fn explore(
    setup: &Setup,
    starts: &[Vec<Move>],
    menu: Menu,
    bounds: Bounds,
) -> Result<Totals, Vec<Violation>> {
    let mut broken: Vec<Violation> = Vec::new();
    let clock = Instant::now();
    let mut totals = Totals::default();
    let mut known = HashSet::new();
    let mut trail: Vec<(Option<usize>, Move)> = Vec::new();
    let mut level: Vec<Point> = Vec::new();
    for start in starts {
        let mut world = setup.world();
        let mut from = None;
        for step in start {
            let before = world.clone();
            trail.push((from.map(|(index, _)| index), *step));
            from = Some((trail.len() - 1, *step));
            if let Err(rule) = setup.go(&mut world, *step) {
                return Err(vec![violation(
                    &trail,
                    from.map(|(index, _)| index),
                    None,
                    rule,
                    before,
                )]);
            }
        }
        level.push(Point {
            world,
            from,
            left: bounds,
        });
    }
    while !level.is_empty() {
        let mut next = Vec::new();
        while let Some(point) = level.pop() {
            if !known.insert(fingerprint(&point)) {
                continue;
            }
            totals.states += 1;
            let at = point.from.map(|(index, _)| index);
            if let Err(rule) = setup.check_settled(&point.world) {
                note(&mut broken, violation(&trail, at, None, rule, point.world));
                continue;
            }
            let planned = setup.plan(&point.world);
            for (step, left) in moves(setup, &point, planned.steps.len(), menu) {
                let mut world = point.world.clone();
                totals.moves += 1;
                let anew = step == Move::Reconcile && !world.refused.is_empty();
                let went = if anew {
                    setup.go(&mut world, step)
                } else {
                    setup.go_with(&mut world, step, &planned)
                };
                if let Err(rule) = went {
                    note(
                        &mut broken,
                        violation(&trail, at, Some(step), rule, point.world.clone()),
                    );
                    continue;
                }
                trail.push((at, step));
                let from = Some((trail.len() - 1, step));
                let onward = Point { world, from, left };
                if known.contains(&fingerprint(&onward)) {
                    trail.pop();
                    continue;
                }
                // A reconcile costs nothing and belongs to the same length of history.
                let same = matches!(step, Move::Reconcile | Move::Wake);
                if same {
                    level.push(onward);
                } else {
                    next.push(onward);
                }
            }
        }
        if broken.len() >= MOST {
            break;
        }
        level = next;
    }
    println!(
        "{:?}, {} CPUs, {:?}, {bounds:?}: {} states, {} moves, {:.1} s",
        setup.kind,
        setup.cpus,
        setup.shapes,
        totals.states,
        totals.moves,
        clock.elapsed().as_secs_f64()
    );
    if broken.is_empty() {
        Ok(totals)
    } else {
        Err(broken)
    }
}

/// Keeps a violation, unless a violation of the same rule exists, with any CPUs and cgroups.
fn note(broken: &mut Vec<Violation>, new: Violation) {
    let kind = |violation: &Violation| -> String {
        violation
            .rule
            .lines()
            .next()
            .unwrap_or_default()
            .chars()
            .filter(|letter| !letter.is_ascii_digit())
            .collect()
    };
    if broken.len() < MOST && !broken.iter().any(|old| kind(old) == kind(&new)) {
        broken.push(new);
    }
}

/// A state and the budget that remains. Two different points have the same number once in ten million searches of this size.
fn fingerprint(point: &Point) -> u64 {
    let mut hasher = DefaultHasher::new();
    point.world.hash(&mut hasher);
    (
        point.left.events,
        point.left.kills,
        point.left.interruptions,
    )
        .hash(&mut hasher);
    hasher.finish()
}

fn moves(setup: &Setup, point: &Point, steps: usize, menu: Menu) -> Vec<(Move, Bounds)> {
    let left = point.left;
    let mut moves = Vec::new();
    if steps > 0 || !point.world.refused.is_empty() {
        moves.push((Move::Reconcile, left));
    }
    if !point.world.refused.is_empty() {
        moves.push((Move::Wake, left));
    }
    if left.kills > 0 {
        let left = Bounds {
            kills: left.kills - 1,
            ..left
        };
        moves.extend((1..steps).map(|after| (Move::Kill(after), left)));
    }
    if left.events > 0 {
        let left = Bounds {
            events: left.events - 1,
            ..left
        };
        let events = point.world.events(setup, menu);
        moves.extend(events.iter().map(|event| (Move::Happen(*event), left)));
        if left.interruptions > 0 {
            let left = Bounds {
                interruptions: left.interruptions - 1,
                ..left
            };
            for after in 1..steps {
                moves.extend(
                    events
                        .iter()
                        .map(|event| (Move::Interrupt(after, *event), left)),
                );
            }
        }
    }
    moves
}

fn violation(
    trail: &[(Option<usize>, Move)],
    mut at: Option<usize>,
    last: Option<Move>,
    rule: String,
    world: World,
) -> Violation {
    let mut moves: Vec<Move> = last.into_iter().collect();
    while let Some((from, step)) = at.and_then(|index| trail.get(index)) {
        moves.push(*step);
        at = *from;
    }
    moves.reverse();
    Violation { moves, rule, world }
}
