//! The policies that the papers' authors measured, to the letter, for the laboratory alone: the
//! authors' claims are about these algorithms, and fairq's own differ from them (decisions 6 and
//! 8). No run of the laboratory takes a request back, holds it or changes its size, so these
//! policies refuse these verbs. Their shared words are traced as those of the core's policies are;
//! names of flows and statistics are not.

pub(super) mod d2fq;
mod flows;
pub(super) mod mqfq;
pub(super) mod slots;
