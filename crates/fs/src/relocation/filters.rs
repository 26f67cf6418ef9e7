//! Decides which chunks a balance chooses.

use ubtrfs_format::Logical;
use ubtrfs_format::items::{
    BalanceArgs, BalanceFilters, BalanceFlags, BalanceItem, BlockGroupFlags, ChunkItem, SINGLE,
};

/// Returns the low and the high half of a number.
fn halves(number: u64) -> (u64, u64) {
    (number & u64::from(u32::MAX), number >> 32)
}

/// Returns a profile as filters name it.
pub(super) fn extended(flags: BlockGroupFlags) -> u64 {
    match flags.profile().0 {
        0 => SINGLE,
        bits => bits,
    }
}

/// Returns the arguments for chunks of this type, if there are any.
pub(super) fn args_of(balance: &BalanceItem, flags: BlockGroupFlags) -> Option<BalanceArgs> {
    let of = |kind, bit, args| (flags.contains(kind) && balance.flags & bit != 0).then_some(args);
    of(BlockGroupFlags::DATA, BalanceFlags::DATA, balance.data)
        .or_else(|| of(BlockGroupFlags::METADATA, BalanceFlags::METADATA, balance.metadata))
        .or_else(|| of(BlockGroupFlags::SYSTEM, BalanceFlags::SYSTEM, balance.system))
}

/// Whether these arguments choose a chunk, of which `used` bytes are used.
pub(super) fn takes(args: &BalanceArgs, start: Logical, chunk: &ChunkItem, used: u64) -> bool {
    let has = |filter| args.filters & filter != 0;
    let part = |percent: u64| {
        if percent >= 100 { chunk.length } else { (u128::from(chunk.length) * u128::from(percent) / 100) as u64 }
    };
    if has(BalanceFilters::PROFILES) && args.profiles & extended(chunk.flags) == 0 {
        return false;
    }
    // A usage filter of 0 percent chooses an empty chunk; one of 100 percent chooses any.
    if has(BalanceFilters::USAGE) && args.usage < 100 && used >= part(args.usage).max(1) {
        return false;
    }
    let (least, most) = halves(args.usage);
    if has(BalanceFilters::USAGE_RANGE) && (used < part(least) || (most < 100 && used >= part(most).max(1))) {
        return false;
    }
    let on_device = |stripe: &&ubtrfs_format::items::Stripe| stripe.devid.0 == args.devid;
    if has(BalanceFilters::DEVID) && !chunk.stripes.iter().any(|stripe| on_device(&stripe)) {
        return false;
    }
    let length = ubtrfs_space::stripe_length(chunk);
    let (from, to) = args.device_range;
    let in_range = |at: u64| at < to && at.saturating_add(length) > from;
    if has(BalanceFilters::DRANGE) && !chunk.stripes.iter().filter(on_device).any(|stripe| in_range(stripe.offset.0)) {
        return false;
    }
    let (from, to) = args.range;
    if has(BalanceFilters::VRANGE) && !(start.0 < to && start.0.saturating_add(chunk.length) > from) {
        return false;
    }
    let (least, most) = halves(args.stripes);
    if has(BalanceFilters::STRIPES_RANGE) && !(least..=most).contains(&(chunk.stripes.len() as u64)) {
        return false;
    }
    let is_converted = has(BalanceFilters::CONVERT) && args.target == extended(chunk.flags);
    !(is_converted && has(BalanceFilters::SOFT))
}

/// Returns the most chunks that these arguments choose.
pub(super) fn limit(args: &BalanceArgs) -> u64 {
    if args.filters & BalanceFilters::LIMIT != 0 {
        args.limit
    } else if args.filters & BalanceFilters::LIMIT_RANGE != 0 {
        halves(args.limit).1
    } else {
        u64::MAX
    }
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::items::{STRIPE_LEN, Stripe};
    use ubtrfs_format::{DeviceId, Physical, Uuid};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn chunk() -> ChunkItem {
        let stripe = |at| Stripe { devid: DeviceId(1), offset: Physical(at), dev_uuid: Uuid::NIL };
        ChunkItem {
            length: 100 * MIB,
            owner: 2,
            stripe_len: STRIPE_LEN,
            flags: BlockGroupFlags::METADATA.with(BlockGroupFlags::DUP),
            io_align: 65536,
            io_width: 65536,
            sector_size: 4096,
            sub_stripes: 1,
            stripes: vec![stripe(10 * MIB), stripe(400 * MIB)],
        }
    }

    #[test]
    fn each_filter_takes_what_it_names() {
        let with = |filters, change: fn(&mut BalanceArgs)| {
            let mut args = BalanceArgs { filters, ..BalanceArgs::default() };
            change(&mut args);
            takes(&args, Logical(1000 * MIB), &chunk(), 50 * MIB)
        };
        assert!(with(0, |_| {}));
        assert!(with(BalanceFilters::USAGE, |args| args.usage = 51));
        assert!(!with(BalanceFilters::USAGE, |args| args.usage = 50));
        assert!(!with(BalanceFilters::USAGE, |args| args.usage = 0));
        assert!(with(BalanceFilters::USAGE_RANGE, |args| args.usage = (60 << 32) + 50));
        assert!(!with(BalanceFilters::USAGE_RANGE, |args| args.usage = (60 << 32) + 51));
        assert!(with(BalanceFilters::PROFILES, |args| args.profiles = BlockGroupFlags::DUP.0));
        assert!(!with(BalanceFilters::PROFILES, |args| args.profiles = SINGLE));
        assert!(with(BalanceFilters::DEVID, |args| args.devid = 1));
        assert!(!with(BalanceFilters::DEVID, |args| args.devid = 2));
        let range = BalanceFilters::DEVID | BalanceFilters::DRANGE;
        assert!(with(range, |args| (args.devid, args.device_range) = (1, (499 * MIB, 600 * MIB))));
        assert!(!with(range, |args| (args.devid, args.device_range) = (1, (110 * MIB, 400 * MIB))));
        assert!(with(BalanceFilters::VRANGE, |args| args.range = (0, 1001 * MIB)));
        assert!(!with(BalanceFilters::VRANGE, |args| args.range = (1100 * MIB, u64::MAX)));
        assert!(with(BalanceFilters::STRIPES_RANGE, |args| args.stripes = (3 << 32) + 2));
        assert!(!with(BalanceFilters::STRIPES_RANGE, |args| args.stripes = (3 << 32) + 3));
        let soft = BalanceFilters::CONVERT | BalanceFilters::SOFT;
        assert!(with(soft, |args| args.target = SINGLE));
        assert!(!with(soft, |args| args.target = BlockGroupFlags::DUP.0));
    }
}
