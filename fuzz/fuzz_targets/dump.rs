#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ubtrfs_fuzzing::dump(data));
