//! Devices as one logical address space: chunks, mirrors, checksums, barriers.
