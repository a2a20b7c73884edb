//! What the faults of a program do, and when.

use tokio::time::Instant;

use crate::sim::gate;
use crate::sim::program::{FaultKind, Foreign, NAMES, Step};
use crate::sim::world::World;

impl World<'_> {
    pub(super) fn plan_faults(&self) {
        for fault in &self.program.faults {
            let (begins, ends) = (self.network.start + fault.at, self.network.start + fault.at + fault.lasts);
            let (kind, history) = (fault.kind, self.history.clone());
            self.network.agenda.add(begins, 0, move || history.trouble_until(ends));
            let links = |p: Option<usize>, m: Option<usize>| {
                let of = self.processes.iter().enumerate().filter(|(at, _)| p.is_none_or(|p| *at == p));
                let links = of.flat_map(|(_, one)| one.links.iter().enumerate());
                let links = links.filter(|(at, _)| m.is_none_or(|m| *at == m)).map(|(_, link)| link.clone());
                links.collect::<Vec<_>>()
            };
            match kind {
                FaultKind::Cut(p, m) => {
                    let links = links(Some(p), Some(m));
                    self.add(ends, kind, move || links.iter().for_each(|link| link.reset()));
                }
                FaultKind::Restart(m, keeps) => {
                    let (links, network) = (links(None, Some(m)), self.network.clone());
                    self.add(begins, kind, move || {
                        let master = &network.masters[m];
                        if !keeps && network.masters.len() == 1 {
                            // No promise covers a hold whose only master has lost its data. A field that was only handed the lock has no
                            // hold yet.
                            for (_, field, _) in
                                master.contents().into_iter().filter(|(_, _, count)| *count > 0)
                            {
                                network.history.forced(&field);
                                network.history.forgotten(&field);
                            }
                        }
                        master.restart(keeps);
                        links.iter().for_each(|link| link.reset());
                    });
                }
                FaultKind::Foreign(m, name, what) => {
                    let (network, other) = (self.network.clone(), self.network.clone());
                    let unordered = what == Foreign::Counter && self.program.time_may_go_back();
                    self.add(begins, kind, move || {
                        if unordered {
                            network.history.forget_order_of_tokens();
                        }
                        network.lose(&network.those(m), name, |master| master.put(name, what, ends));
                    });
                    self.add(ends, kind, move || {
                        other.those(m).into_iter().for_each(|at| other.masters[at].take(name, ends));
                    });
                }
                FaultKind::Deletes(m, name) => {
                    let network = self.network.clone();
                    self.add(begins, kind, move || {
                        network.lose(&network.those(m), name, |master| master.delete(name));
                    });
                }
                FaultKind::Steps(m, by, step) => {
                    let network = self.network.clone();
                    self.add(begins, kind, move || match step {
                        Step::Back => network.masters[m].set_back(by),
                        Step::Forward => {
                            (0..NAMES.len())
                                .for_each(|name| network.lose(&[m], name, |master| master.shorten(name)));
                            network.masters[m].advance(by);
                        }
                    });
                }
                FaultKind::Suspend(time, resets) => {
                    let (network, links) = (self.network.clone(), links(None, None));
                    self.add(begins, kind, move || {
                        gate::set_slept(gate::slept() + time);
                        network.masters.iter().for_each(|master| master.advance(time));
                        links.iter().filter(|_| resets).for_each(|link| link.reset());
                    });
                }
                FaultKind::EndsRuntime(p) => {
                    let (process, links) = (self.processes[p].process.clone(), links(Some(p), None));
                    let portable = self.program.setup.portable;
                    self.add(begins, kind, move || {
                        process.end_runtime();
                        links.iter().filter(|_| !portable).for_each(|link| link.end());
                    });
                }
                FaultKind::Freeze(p) => {
                    let (one, other) = (self.processes[p].process.clone(), self.processes[p].process.clone());
                    self.add(begins, kind, move || one.freeze());
                    self.add(ends, kind, move || other.thaw());
                }
                FaultKind::Crash(p) => {
                    let (process, links) = (self.processes[p].process.clone(), links(Some(p), None));
                    let history = self.history.clone();
                    self.add(begins, kind, move || {
                        process.crash();
                        history.process_dies(p);
                        links.iter().for_each(|link| link.end());
                    });
                }
                _ => {
                    self.add(begins, kind, || {});
                    self.add(ends, kind, || {});
                }
            }
        }
    }

    fn add(&self, at: Instant, kind: FaultKind, action: impl FnOnce() + Send + 'static) {
        let history = self.history.clone();
        self.network.agenda.add(at, 0, move || {
            history.note(|| format!("fault {kind:?} begins or ends"));
            action();
        });
    }
}
