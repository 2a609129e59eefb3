//! The laws of arbitration (NVMe 2.1, 3.4.4), each as a check of any [`Subject`]: `Err` has the
//! violation.

use fairq_core::{Class, ClassWeights};
use fairq_device::{Arbitration, Mechanism};

use crate::subject::{CLASSES, Subject};

/// Makes a subject.
pub(crate) type Build<'a> = dyn Fn(Mechanism, usize, Arbitration) -> Box<dyn Subject> + 'a;

/// Queues that are never empty, by class.
#[derive(Clone, Debug)]
pub(crate) struct Backlog {
    pub(crate) arbitration: Arbitration,
    /// The numbers of urgent, high, medium and low queues. Their indexes are interleaved.
    pub(crate) queues: [u16; 4],
}

/// One fetched command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fetched {
    queue: u16,
    class: Class,
}

const PLENTY: u32 = 1 << 20;

impl Backlog {
    /// The classes of queues 0, 1, 2 and so on.
    fn classes(&self) -> Vec<Class> {
        let mut left = self.queues;
        let mut classes = Vec::new();
        while left.iter().any(|&count| count > 0) {
            for (class, count) in CLASSES.into_iter().zip(&mut left) {
                if *count > 0 {
                    *count -= 1;
                    classes.push(class);
                }
            }
        }
        classes
    }

    fn build(&self, build: &Build<'_>, mechanism: Mechanism) -> Box<dyn Subject> {
        let classes = self.classes();
        let mut subject = build(mechanism, classes.len(), self.arbitration);
        for (queue, &class) in (0..).zip(&classes) {
            subject.add(queue, class);
            subject.post(queue, PLENTY);
        }
        subject
    }

    fn fetch(&self, subject: &mut dyn Subject, commands: u32) -> Result<Vec<Fetched>, String> {
        let classes = self.classes();
        let fetch = |_| {
            let queue = subject.next().ok_or("idle: nothing is fetched though commands wait")?;
            Ok(Fetched { queue, class: classes[usize::from(queue)] })
        };
        (0..commands).map(fetch).collect()
    }

    /// One round of the weighted classes that have queues, in the order in which they have their
    /// turns.
    fn turns(&self, weights: ClassWeights) -> Vec<(Class, u32)> {
        let weights = [0, weights.high, weights.medium, weights.low].map(u32::from);
        let turns = CLASSES.into_iter().zip(weights).zip(self.queues);
        turns
            .filter(|&((class, _), queues)| class != Class::Urgent && queues > 0)
            .map(|(turn, _)| turn)
            .collect()
    }
}

/// Each backlogged class starts exactly its weight in commands per round, high before medium before
/// low, and the credits of absent classes go to the others.
pub(crate) fn shares(build: &Build<'_>, backlog: &Backlog) -> Result<(), String> {
    let mut subject = backlog.build(build, Mechanism::Weighted);
    for round in 0..4 {
        for (class, weight) in backlog.turns(backlog.arbitration.weights) {
            let fetched = backlog.fetch(&mut *subject, weight)?;
            if let Some(other) = fetched.iter().position(|command| command.class != class) {
                return Err(format!(
                    "share: round {round}: {class:?} had {other} of {weight} commands"
                ));
            }
        }
    }
    Ok(())
}

/// Within a class queues take turns by index, each with min(burst, the class's remaining credits)
/// commands.
pub(crate) fn round_robin(
    build: &Build<'_>,
    backlog: &Backlog,
    mechanism: Mechanism,
) -> Result<(), String> {
    let mut subject = backlog.build(build, mechanism);
    let classes = backlog.classes();
    let burst = backlog.arbitration.burst.commands().unwrap_or(u32::MAX);
    let mut last = [classes.len() - 1; 4];
    let turns = match (mechanism, backlog.queues[0]) {
        (Mechanism::Weighted, 0) => backlog.turns(backlog.arbitration.weights),
        _ => vec![(Class::Urgent, 300)],
    };
    // Urgent queues, and all under plain round robin, take one turn that never ends.
    let endless = turns[0].0 == Class::Urgent;
    let mut left_of_burst = 0;
    for _ in 0..4 {
        for &(class, credits) in &turns {
            let fetched = backlog.fetch(&mut *subject, credits)?;
            let last = &mut last[class as usize];
            if !endless {
                left_of_burst = 0;
            }
            for command in fetched {
                if left_of_burst == 0 {
                    let member = |&next: &usize| {
                        mechanism == Mechanism::RoundRobin || classes[next] == class
                    };
                    let round = (1..=classes.len()).map(|step| (*last + step) % classes.len());
                    *last = round.into_iter().find(member).expect("the class has queues");
                    left_of_burst = burst;
                }
                if usize::from(command.queue) != *last {
                    return Err(format!(
                        "turn: queue {} in the turn of {last}, {class:?}",
                        command.queue
                    ));
                }
                left_of_burst -= 1;
            }
        }
    }
    Ok(())
}

/// A round ends with the weights with which it began; the next round has the new ones.
pub(crate) fn weights_between_rounds(
    build: &Build<'_>,
    backlog: &Backlog,
    new: ClassWeights,
    after: u32,
) -> Result<(), String> {
    let mut subject = backlog.build(build, Mechanism::Weighted);
    let arbitration = backlog.arbitration;
    let round = |weights| -> Vec<Class> {
        let turns = backlog.turns(weights).into_iter();
        turns.flat_map(|(class, weight)| std::iter::repeat_n(class, weight as usize)).collect()
    };
    let old = round(arbitration.weights);
    // A round begins with its first command.
    let after = 1 + after % old.len() as u32;
    let mut fetched = backlog.fetch(&mut *subject, after)?;
    subject.set(Arbitration { weights: new, ..arbitration });
    let expected: Vec<Class> = [old, round(new), round(new)].concat();
    fetched.extend(backlog.fetch(&mut *subject, expected.len() as u32 - after)?);
    let wrong = fetched.iter().zip(&expected).position(|(command, &class)| command.class != class);
    wrong.map_or(Ok(()), |at| {
        Err(format!("weights: command {at} is {:?}, not {:?}", fetched[at].class, expected[at]))
    })
}

/// A step of a random history of an arbiter.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Post {
        queue: u16,
        commands: u32,
    },
    Fetch {
        commands: u32,
    },
    Set(Arbitration),
    /// Removes the queue and adds it again, in this class.
    Replace {
        queue: u16,
        class: Class,
    },
}

/// A random history.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) mechanism: Mechanism,
    pub(crate) arbitration: Arbitration,
    pub(crate) classes: Vec<Class>,
    pub(crate) steps: Vec<Step>,
}

/// For each queue, its class and the number of its waiting commands.
type Waiting = Vec<(Class, u32)>;

/// The results of a history, step by step: fetched queues; and, before each fetch, the commands
/// that waited.
pub(crate) struct Trace {
    fetches: Vec<(Option<u16>, Waiting)>,
}

impl History {
    /// Runs the history and then fetches until no command is left.
    pub(crate) fn run(&self, build: &Build<'_>) -> Result<Trace, String> {
        let mut subject = build(self.mechanism, self.classes.len(), self.arbitration);
        (0..).zip(&self.classes).for_each(|(queue, &class)| subject.add(queue, class));
        let mut waiting: Waiting = self.classes.iter().map(|&class| (class, 0)).collect();
        let mut fetches = Vec::new();
        let mut fetch = |subject: &mut dyn Subject, waiting: &mut Waiting| {
            let queue = subject.next();
            fetches.push((queue, waiting.clone()));
            let Some(queue) = queue else { return Ok(false) };
            let left = &mut waiting[usize::from(queue)].1;
            *left = left.checked_sub(1).ok_or("count: more was fetched than posted")?;
            Ok::<_, String>(true)
        };
        for step in &self.steps {
            match *step {
                Step::Post { queue, commands } => {
                    subject.post(queue, commands);
                    waiting[usize::from(queue)].1 += commands;
                }
                Step::Fetch { commands } => {
                    for _ in 0..commands {
                        fetch(&mut *subject, &mut waiting)?;
                    }
                }
                Step::Set(arbitration) => subject.set(arbitration),
                Step::Replace { queue, class } => {
                    let dropped = subject.remove(queue);
                    if dropped != waiting[usize::from(queue)].1 {
                        return Err(format!(
                            "count: {dropped} commands dropped of {:?}",
                            waiting[usize::from(queue)]
                        ));
                    }
                    subject.add(queue, class);
                    waiting[usize::from(queue)] = (class, 0);
                }
            }
        }
        while fetch(&mut *subject, &mut waiting)? {}
        Ok(Trace { fetches })
    }
}

impl Trace {
    /// Each posted command is fetched once: no fetch returns a command that was not posted, and
    /// none fails while a command waits.
    pub(crate) fn each_once(&self) -> Result<(), String> {
        let idle = |(queue, waiting): &&(Option<u16>, Waiting)| {
            queue.is_none() && waiting.iter().any(|&(_, left)| left > 0)
        };
        self.fetches
            .iter()
            .find(idle)
            .map_or(Ok(()), |(_, waiting)| Err(format!("idle: {waiting:?} wait")))
    }

    /// No weighted command is fetched while an urgent one waits.
    pub(crate) fn urgent_first(&self) -> Result<(), String> {
        for (queue, waiting) in &self.fetches {
            let urgent = waiting.iter().any(|&(class, left)| class == Class::Urgent && left > 0);
            if urgent && queue.is_some_and(|queue| waiting[usize::from(queue)].0 != Class::Urgent) {
                return Err(format!("urgent: {queue:?} while {waiting:?} wait"));
            }
        }
        Ok(())
    }

    /// A low command waits at most for the high and medium commands of a round: while low commands
    /// wait, at most `most` weighted commands of other classes are fetched in a row.
    pub(crate) fn low_is_not_starved(&self, most: usize) -> Result<(), String> {
        let mut in_a_row = 0;
        for (queue, waiting) in &self.fetches {
            let low_waits = waiting.iter().any(|&(class, left)| class == Class::Low && left > 0);
            match queue.map(|queue| waiting[usize::from(queue)].0) {
                Some(Class::High | Class::Medium) if low_waits => in_a_row += 1,
                Some(Class::Urgent) => {}
                _ => in_a_row = 0,
            }
            if in_a_row > most {
                return Err(format!(
                    "starved: {in_a_row} commands before a low one, {most} are a round's"
                ));
            }
        }
        Ok(())
    }

    /// The queues fetched from, in order.
    pub(crate) fn queues(&self) -> Vec<Option<u16>> {
        self.fetches.iter().map(|&(queue, _)| queue).collect()
    }
}
