//! The options that are refused, the order of writes, and that equal options give equal bytes.

use std::io;

use ubtrfs_format::{
    Header, ItemContext, Node, NodeExpectation, Physical, Superblock, check_header, check_leaf, verify_node_checksum,
};
use ubtrfs_mkfs::{Medium, MkfsError, MkfsOptions, NewDevice, Profile, layout, random_uuid};

const MIB: u64 = 1 << 20;

fn refusal(options: &MkfsOptions) -> MkfsError {
    layout(options).unwrap_err()
}

#[test]
fn impossible_options_are_refused() {
    let good = MkfsOptions::new(128 * MIB);
    assert!(layout(&good).is_ok());
    let node = |node_size| refusal(&MkfsOptions { node_size: Some(node_size), ..good.clone() });
    assert_eq!(node(2048), MkfsError::NodeSize(2048));
    assert_eq!(node(12288), MkfsError::NodeSize(12288));
    assert_eq!(node(131_072), MkfsError::NodeSize(131_072));
    let sector = |sector_size, node_size| {
        let error = layout(&MkfsOptions { sector_size, node_size, ..good.clone() }).err();
        error.map(|error| error.to_string())
    };
    assert_eq!(sector(2048, None).as_deref(), Some(MkfsError::SectorSize(2048).to_string().as_str()));
    assert!(sector(131_072, None).is_some() && sector(12288, None).is_some());
    assert!(sector(16384, Some(8192)).is_some_and(|error| error.contains("less than the sector size of 16384")));
    assert_eq!((sector(16384, None), sector(65536, None), sector(8192, Some(8192))), (None, None, None));
    let mixed = MkfsOptions { mixed: true, ..good.clone() };
    assert!(layout(&mixed).is_ok());
    assert_eq!(
        refusal(&MkfsOptions { node_size: Some(16384), ..mixed.clone() }),
        MkfsError::MixedNodeSize { node_size: 16384, sector_size: 4096 }
    );
    let (data_profile, metadata_profile) = (Some(Profile::Single), Some(Profile::Dup));
    assert_eq!(refusal(&MkfsOptions { data_profile, metadata_profile, ..mixed }), MkfsError::MixedProfiles);
    let striped = MkfsOptions { data_profile: Some(Profile::Raid0), ..MkfsOptions::new(1024 * MIB) };
    assert!(layout(&striped).is_ok());
    let mirrored = MkfsOptions { data_profile: Some(Profile::Raid1c3), ..good.clone() };
    assert_eq!(refusal(&mirrored), MkfsError::TooFewDevices { profile: "raid1c3", devices: 1, least: 3 });
    let grouped = MkfsOptions { block_group_tree: true, ..good.clone() };
    assert!(layout(&grouped).is_ok());
    assert_eq!(refusal(&MkfsOptions { no_holes: false, ..grouped.clone() }), MkfsError::BlockGroupTree);
    assert_eq!(refusal(&MkfsOptions { free_space_tree: false, ..grouped }), MkfsError::BlockGroupTree);
    assert_eq!(refusal(&MkfsOptions { label: vec![b'x'; 256], ..good.clone() }), MkfsError::LabelTooLong(256));
    assert!(layout(&MkfsOptions { label: vec![b'x'; 255], ..good.clone() }).is_ok());
    assert_eq!(refusal(&MkfsOptions { label: b"two\nlines".to_vec(), ..good.clone() }), MkfsError::LabelByte);
    assert_eq!(refusal(&MkfsOptions { label: b"zero\0".to_vec(), ..good }), MkfsError::LabelByte);
}

#[test]
fn the_error_about_a_small_device_has_the_least_size() {
    for size in [0, 1, 4096, 108 * MIB, 109 * MIB - 1] {
        let minimum = 109 * MIB;
        assert_eq!(refusal(&MkfsOptions::new(size)), MkfsError::TooSmall { size, minimum });
    }
    let said = refusal(&MkfsOptions::new(1000)).to_string();
    assert!(said.contains("114294784") && said.contains("109 MiB"), "{said}");
    assert!(layout(&MkfsOptions::new(109 * MIB)).is_ok());
}

/// A medium that records what is done to it.
#[derive(Default)]
struct Recorder(Vec<Event>);

enum Event {
    Write(Physical, Vec<u8>),
    Flush,
}

impl Medium for Recorder {
    fn write_at(&mut self, at: Physical, bytes: &[u8]) -> io::Result<()> {
        self.0.push(Event::Write(at, bytes.to_vec()));
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.push(Event::Flush);
        Ok(())
    }
}

#[test]
fn superblocks_come_last_between_flushes() {
    let options = MkfsOptions::new(128 * MIB);
    let layout = layout(&options).unwrap();
    let mut recorder = Recorder::default();
    layout.write(&mut [&mut recorder]).unwrap();
    let stages: Vec<&[Event]> = recorder.0.split(|event| matches!(event, Event::Flush)).collect();
    assert_eq!(stages.len(), 4);
    assert!(stages[3].is_empty());
    let is_superblock = |event: &Event| match event {
        Event::Write(at, bytes) => Superblock::parse(bytes, *at).is_ok(),
        Event::Flush => false,
    };
    assert!(!stages[0].iter().chain(stages[1]).any(is_superblock));
    assert_eq!(stages[2].len(), 2, "128 MiB hold two copies");
    assert!(stages[2].iter().all(is_superblock));
    for event in stages[0] {
        assert!(matches!(event, Event::Write(_, bytes) if bytes.iter().all(|byte| *byte == 0)));
    }
}

#[test]
fn each_device_has_its_own_superblocks_and_the_first_gets_them_last() {
    let more_devices = vec![NewDevice { total_bytes: 200 * MIB, uuid: random_uuid() }];
    let options = MkfsOptions { more_devices, ..MkfsOptions::new(128 * MIB) };
    let layout = layout(&options).unwrap();
    assert_eq!((layout.superblock.num_devices, layout.superblock.total_bytes), (2, 328 * MIB));
    for (device, (devid, new)) in layout.devices.iter().zip(options.devices()) {
        for (at, bytes) in &device.superblocks {
            let item = Superblock::parse(bytes, *at).unwrap().dev_item;
            assert_eq!((item.devid, item.uuid, item.total_bytes), (devid, new.uuid, new.total_bytes));
            assert!(item.bytes_used > 0);
        }
        assert!(!device.blocks.is_empty(), "metadata is on both by default");
    }
    let (mut first, mut second) = (Recorder::default(), Recorder::default());
    layout.write(&mut [&mut first, &mut second]).unwrap();
    let flushes = |of: &Recorder| of.0.iter().filter(|event| matches!(event, Event::Flush)).count();
    assert_eq!((flushes(&first), flushes(&second)), (3, 3));
    assert!(layout.write(&mut [&mut first]).is_err(), "each device is needed");
}

#[test]
fn equal_options_give_equal_bytes() {
    let options = MkfsOptions::new(128 * MIB);
    let (one, two) = (layout(&options).unwrap(), layout(&options).unwrap());
    assert_eq!(one.devices[0].blocks, two.devices[0].blocks);
    assert_eq!(one.devices[0].superblocks, two.devices[0].superblocks);
    assert_ne!(MkfsOptions::new(128 * MIB).fsid, options.fsid);
}

#[test]
fn every_block_keeps_the_rules() {
    let plain = MkfsOptions::new(256 * MIB);
    let small_nodes = MkfsOptions { node_size: Some(4096), block_group_tree: true, ..plain.clone() };
    let mixed = MkfsOptions { mixed: true, ..plain.clone() };
    let mut internal = 0;
    for options in [plain, small_nodes, mixed] {
        let layout = layout(&options).unwrap();
        layout.superblock.check_mountable().unwrap();
        let context = ItemContext::from(&layout.superblock);
        for (_, block) in &layout.devices[0].blocks {
            verify_node_checksum(block, options.checksum).unwrap();
            let header = Header::parse(block).unwrap();
            check_header(&header, options.chunk_tree_uuid).unwrap();
            let expected = NodeExpectation {
                bytenr: header.bytenr,
                level: None,
                generation: Some(layout.superblock.generation),
                owner: None,
                first_key: None,
                fsid: options.fsid,
            };
            match Node::check(block, &expected, options.sector_size).unwrap() {
                Node::Leaf(leaf) => check_leaf(header.owner, &leaf, &context).unwrap(),
                Node::Internal(node) => {
                    internal += 1;
                    assert_eq!(node.len(), 2);
                }
            }
        }
    }
    assert_eq!(internal, 2, "both copies of the root tree's root where its items don't fit one small leaf");
}
