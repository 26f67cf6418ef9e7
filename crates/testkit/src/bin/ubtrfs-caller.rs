//! Makes the calls of one side of the differential tests: see
//! [`differential`](ubtrfs_testkit::differential).

fn main() {
    ubtrfs_testkit::differential::process::serve(std::env::args().skip(1));
}
