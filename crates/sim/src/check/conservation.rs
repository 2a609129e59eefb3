//! **Conservation.** Each accepted request is issued once, by its own port, and completed once; a
//! port with staged requests does not report that it is idle; and when tenants stop submitting, all
//! their requests are served.
//!
//! (A port that issues a request that it does not have, or issues one twice, is stopped by the
//! world, which reports a breach of the contract.)

use super::Check;
use crate::fact::{Fact, Live};
use crate::scenario::Scenario;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Free,
    Staged,
    Issued,
    Fetched,
}

/// Follows every request.
pub struct Conservation {
    tags: usize,
    stages: Box<[Stage]>,
    staged: Box<[usize]>,
    live: usize,
}

impl Conservation {
    /// A check for the ports and tags of a scenario.
    pub fn new(scenario: &Scenario) -> Self {
        let tags = scenario.tags();
        Conservation {
            tags,
            stages: vec![Stage::Free; scenario.ports * tags].into(),
            staged: vec![0; scenario.ports].into(),
            live: 0,
        }
    }

    fn goes(&mut self, request: &Live, from: Stage, to: Stage) -> Result<(), String> {
        let stage = &mut self.stages[request.port * self.tags + request.tag as usize];
        let was = std::mem::replace(stage, to);
        if was == from { Ok(()) } else { Err(format!("{request:?} was {was:?} and is {to:?} now")) }
    }
}

impl Check for Conservation {
    fn name(&self) -> &'static str {
        "conservation"
    }

    fn see(&mut self, _now_ns: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Submitted(request) => {
                self.live += 1;
                self.staged[request.port] += 1;
                self.goes(request, Stage::Free, Stage::Staged)
            }
            Fact::Issued(request) => {
                self.staged[request.port] -= 1;
                self.goes(request, Stage::Staged, Stage::Issued)
            }
            Fact::Fetched(request) => self.goes(request, Stage::Issued, Stage::Fetched),
            Fact::Completed(request, _) => {
                self.live -= 1;
                self.goes(request, Stage::Fetched, Stage::Free)
            }
            Fact::SaidIdle { port } if self.staged[*port] > 0 => Err(format!(
                "port {port} says that it is idle and has {} requests",
                self.staged[*port]
            )),
            _ => Ok(()),
        }
    }

    fn end(&mut self, _now_ns: u64) -> Result<(), String> {
        if self.live == 0 {
            Ok(())
        } else {
            Err(format!("{} requests are never served", self.live))
        }
    }
}
