//! Each of the rules above is taken out once, and the tests notice.

use tender_proto::mutant::{self, Mutant};

use super::order::live;
use crate::copy::cuda::driver::fake::Trouble;

#[test]
fn every_rule_of_order_is_watched() {
    std::panic::set_hook(Box::new(|_| ()));
    let all = [
        Mutant::CopyBeforeGather,
        Mutant::SlotBeforeCopy,
        Mutant::SpanBeforeGather,
        Mutant::RingOverrun,
        Mutant::ScatterBeforeFence,
        Mutant::LoadBeforeCopies,
        Mutant::RoomBeforeCopy,
    ];
    let mut unseen = Vec::new();
    for rule in all {
        mutant::set(Some(rule));
        let noticed = (0..2000)
            .position(|seed| std::panic::catch_unwind(|| live(seed, Trouble::default(), 60)).is_err());
        mutant::set(None);
        match noticed {
            Some(seed) => println!("{rule:?} is noticed by seed {seed}"),
            None => unseen.push(rule),
        }
    }
    _ = std::panic::take_hook();
    assert_eq!(unseen, []);
}
