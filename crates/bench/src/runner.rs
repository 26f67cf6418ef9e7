//! Measures in rounds: each case on each peer in turn, on a fresh volume every time.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use indicatif::{ProgressBar, ProgressStyle};

use crate::cleanup::{self, Yard};
use crate::failure::{Failure, Result};
use crate::machine::Machine;
use crate::peers::{Conditions, Peer};
use crate::process;
use crate::samples::{Better, FORM, Measured, PeerFacts, Results, Sample};
use crate::switch::Switch;
use crate::workloads::{Case, Scale};

/// Bytes that must be free for the images.
const MIN_ROOM: u64 = 10 << 30;

/// The plan of a run.
pub struct RunPlan {
    /// Cases in their order.
    pub cases: Vec<Case>,
    /// Peers in their order.
    pub peers: Vec<Peer>,
    /// Rounds.
    pub rounds: u32,
    /// The amount of work.
    pub scale: Scale,
    /// The properties of the devices.
    pub conditions: Conditions,
    /// Where images are made.
    pub dir: PathBuf,
    /// The file of the results.
    pub out: PathBuf,
}

/// Runs a plan. What was measured is written even if the run is interrupted.
pub fn run(plan: &RunPlan) -> Result<Results> {
    let yard = Yard::new(&plan.dir)?;
    cleanup::listen(yard.path())?;
    let _switch = Switch::turn_on();
    let room = rustix::fs::statvfs(yard.path())?;
    if plan.scale > Scale::Tiny && room.f_bavail * room.f_frsize < MIN_ROOM {
        return Err(Failure::new(format!("{}: less than 10 GiB are free", plan.dir.display())));
    }
    let mut results = Results {
        form: FORM,
        date: date(),
        command: std::env::args().skip(1).collect(),
        scale: plan.scale.name().into(),
        rounds: plan.rounds,
        machine: Machine::look(&plan.dir),
        peers: Vec::new(),
        cases: plan.cases.iter().map(|case| case.facts.clone()).collect(),
        samples: Vec::new(),
        skipped: Vec::new(),
    };
    let peers = able_peers(plan, &mut results);
    let bar = bar((plan.cases.len() * peers.len()) as u64 * u64::from(plan.rounds));
    let (rounds, volume_size, conditions) = (plan.rounds, plan.scale.volume(), plan.conditions);
    let mut running = Running { yard: yard.path(), rounds, volume_size, conditions, peers, results, bar };
    let mut ended = Ok(());
    for case in &plan.cases {
        ended = running.case(case);
        running.results.save(&plan.out)?;
        if ended.is_err() {
            break;
        }
    }
    running.bar.finish_and_clear();
    let mut results = running.results;
    if ended == Err(Failure::Interrupted) {
        results.skipped.push("everything that a signal came before".into());
        results.save(&plan.out)?;
    }
    ended.map(|()| results)
}

/// Returns the peers that can be measured here, and notes why the others can't be.
fn able_peers(plan: &RunPlan, results: &mut Results) -> Vec<Peer> {
    let mut able = Vec::new();
    for peer in &plan.peers {
        if let Some(why) = peer.unable(plan.conditions) {
            results.skipped.push(format!("{}: {why}", peer.name));
            continue;
        }
        able.push(*peer);
        let (name, about) = (peer.name.into(), peer.about.into());
        results.peers.push(PeerFacts { name, about, ..PeerFacts::default() });
    }
    able
}

/// A run in progress.
struct Running<'a> {
    yard: &'a Path,
    rounds: u32,
    volume_size: u64,
    conditions: Conditions,
    peers: Vec<Peer>,
    results: Results,
    bar: ProgressBar,
}

impl Running<'_> {
    /// Reports and notes why something is not measured.
    fn skip(&mut self, line: String) {
        self.bar.suspend(|| eprintln!("skipped: {line}"));
        self.results.skipped.push(line);
    }

    /// Runs all rounds of a case.
    fn case(&mut self, case: &Case) -> Result<()> {
        let name = &case.facts.name;
        let steps = self.peers.len() as u64 * u64::from(self.rounds);
        if let Some(program) = case.programs.iter().find(|program| process::find(program).is_none()) {
            self.skip(format!("{name}: the program {program} is missing"));
            self.bar.inc(steps);
            return Ok(());
        }
        let mut peers = self.peers.clone();
        peers.retain(|peer| peer.has_directory() || case.in_process);
        peers.retain(|peer| peer.is_plain_library() || !case.own_volume);
        peers.retain(|peer| peer.has_subvolumes() || !case.subvolumes);
        peers.retain(|peer| peer.can_be_far_away() || case.delay.is_none());
        self.bar.inc(steps - peers.len() as u64 * u64::from(self.rounds));
        for round in 1..=self.rounds {
            // The order of peers is reversed in every other round, so that a drift in one direction
            // favours none.
            let order: Vec<Peer> = if round % 2 == 1 { peers.clone() } else { peers.iter().rev().copied().collect() };
            for peer in order {
                self.bar.set_message(format!("{name} on {} ({round}/{})", peer.name, self.rounds));
                if let Err(failure) = self.measure(case, peer, round) {
                    // A failure after a signal is due to the signal.
                    cleanup::check()?;
                    self.skip(format!("{name} on {}: {failure}", peer.name));
                    peers.retain(|other| *other != peer);
                }
                self.bar.inc(1);
            }
        }
        Ok(())
    }

    /// Runs one case once on one peer.
    fn measure(&mut self, case: &Case, peer: Peer, round: u32) -> Result<()> {
        cleanup::check()?;
        if !self.peers.contains(&peer) {
            return Ok(());
        }
        let conditions = Conditions { delay: case.delay, ..self.conditions };
        let mut mounted = match peer.begin(self.yard, case.volume.unwrap_or(self.volume_size), conditions) {
            Err(Failure::Impossible(why)) => {
                self.skip(format!("{}: {why}", peer.name));
                self.peers.retain(|other| *other != peer);
                self.results.peers.retain(|other| other.name != peer.name);
                return Ok(());
            }
            begun => begun?,
        };
        let mut measured = Measured::default();
        let done = (case.run)(&mut mounted, &mut measured);
        // Whatever happened, the volume is removed before anything else begins.
        let start = Instant::now();
        let unmounted = mounted.unmount();
        measured.add("unmount", start.elapsed().as_secs_f64() * 1e3, "ms", Better::Lower);
        let mut peers = self.results.peers.iter_mut();
        if let Some(facts) = peers.find(|facts| facts.name == peer.name) {
            // Most cases use no server, so the facts of a peer are those without one.
            if facts.facts.is_empty() || case.delay.is_none() {
                facts.facts = mounted.facts().clone();
            }
        }
        done.and(unmounted)?;
        self.results.samples.push(Sample { case: case.facts.name.clone(), peer: peer.name.into(), round, measured });
        Ok(())
    }
}

fn bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} (about {eta} left) {msg}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}

/// Returns the present time in UTC, to the minute.
fn date() -> String {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let (year, month, day) = civil(seconds / 86400);
    let minutes = seconds % 86400 / 60;
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

/// Returns the date of a day since the epoch. Years begin in March here, so that leap days come
/// last.
fn civil(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468;
    let era = day / 146_097;
    let of_era = day % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, of_month)
}

#[cfg(test)]
mod tests {
    use super::civil;

    #[test]
    fn days_have_dates() {
        for (day, date) in [(0, (1970, 1, 1)), (59, (1970, 3, 1)), (11_016, (2000, 2, 29)), (20_453, (2025, 12, 31))] {
            assert_eq!(civil(day), date);
        }
    }
}
