use super::*;

/// A tree of files in which mkdir and rmdir behave as the kernel's documentation says. A new group
/// gets files and takes a monitor. The file `limbo` holds the number of monitors in limbo.
pub(crate) fn tree(root: &Path, rmids: usize) -> Resctrl {
    let top = root.join("sys/fs/resctrl");
    fs::create_dir_all(top.join("mon_groups")).unwrap();
    fs::create_dir_all(top.join("info/L3_MON")).unwrap();
    fs::write(top.join("info/L3_MON/num_rmids"), format!("{rmids}\n")).unwrap();
    let operations = DirectoryOperations {
        make,
        remove: |path| fs::remove_dir_all(path),
        bind,
    };
    Resctrl {
        operations,
        ..Resctrl::new(root)
    }
}

/// Refuses the CPUs listed in the file `refused`, as the kernel refuses those of another control
/// group.
fn bind(path: &Path, cpus: &str) -> Result<(), FileError> {
    let top = path.ancestors().nth(3).unwrap();
    let refused = fs::read_to_string(top.join("refused")).unwrap_or_default();
    if !refused.is_empty() && !set(refused.trim()).is_disjoint(&set(cpus)) {
        let source = io::Error::from_raw_os_error(22);
        return Err(FileError::Write {
            path: path.to_owned(),
            data: cpus.to_owned(),
            source,
        });
    }
    file::write(path, cpus)
}

fn make(path: &Path) -> io::Result<()> {
    let top = path.parent().unwrap().parent().unwrap();
    let number = |file: &str| -> usize {
        fs::read_to_string(top.join(file))
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0)
    };
    let used = 1 + fs::read_dir(path.parent().unwrap()).unwrap().count();
    if used >= number("info/L3_MON/num_rmids") {
        return Err(io::Error::from_raw_os_error(28));
    }
    if used + number("limbo") >= number("info/L3_MON/num_rmids") {
        return Err(io::Error::from_raw_os_error(16));
    }
    fs::create_dir(path)?;
    fs::write(path.join("cpus_list"), "\n")?;
    fs::write(path.join("tasks"), "")?;
    for domain in ["mon_L3_00", "mon_L3_01"] {
        let domain = path.join("mon_data").join(domain);
        fs::create_dir_all(&domain)?;
        for file in ["llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"] {
            fs::write(domain.join(file), "0\n")?;
        }
    }
    Ok(())
}

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

#[test]
fn a_missing_resctrl_is_named_with_the_remedy() {
    let root = tempfile::tempdir().unwrap();
    let resctrl = Resctrl::new(root.path());
    let says = || resctrl.available_groups().unwrap_err().to_string();
    assert!(
        says().contains("does not support monitoring of caches"),
        "{}",
        says()
    );
    let top = root.path().join("sys/fs/resctrl");
    fs::create_dir_all(&top).unwrap();
    assert!(
        says().contains(&format!("mount -t resctrl resctrl {}", top.display())),
        "{}",
        says()
    );
    fs::create_dir_all(top.join("info")).unwrap();
    assert!(says().contains("info/L3_MON"), "{}", says());
    fs::create_dir_all(top.join("info/L3_MON")).unwrap();
    fs::write(top.join("info/L3_MON/num_rmids"), "many\n").unwrap();
    assert!(says().contains("\"many\""), "{}", says());
}

#[test]
fn others_have_their_monitors() {
    let root = tempfile::tempdir().unwrap();
    let resctrl = tree(root.path(), 10);
    assert_eq!(
        resctrl.available_groups().unwrap(),
        9,
        "the root group has one"
    );
    let top = root.path().join("sys/fs/resctrl");
    for directory in [
        "mon_data",
        "gold/mon_groups/a",
        "gold/mon_groups/b",
        "mon_groups/theirs",
        "mon_groups/pinfold-a",
    ] {
        fs::create_dir_all(top.join(directory)).unwrap();
    }
    assert_eq!(resctrl.available_groups().unwrap(), 5);
}

#[test]
fn groups_come_and_go() {
    let root = tempfile::tempdir().unwrap();
    let resctrl = tree(root.path(), 3);
    resctrl.make("pinfold-a").unwrap();
    resctrl.bind("pinfold-a", &set("2-3,8")).unwrap();
    let top = root.path().join("sys/fs/resctrl");
    fs::create_dir_all(top.join("mon_groups/theirs")).unwrap();
    assert_eq!(
        resctrl.groups().unwrap(),
        BTreeMap::from([("pinfold-a".to_owned(), set("2-3,8"))])
    );
    assert!(
        matches!(resctrl.make("pinfold-b"), Err(ResctrlError::Exhausted(_))),
        "ENOSPC"
    );
    fs::remove_dir(top.join("mon_groups/theirs")).unwrap();
    fs::write(top.join("limbo"), "1").unwrap();
    assert!(
        matches!(resctrl.make("pinfold-b"), Err(ResctrlError::Exhausted(_))),
        "EBUSY"
    );
    resctrl.remove("pinfold-a").unwrap();
    resctrl.remove("pinfold-a").unwrap();
    assert!(resctrl.groups().unwrap().is_empty());
    assert!(matches!(
        resctrl.bind("pinfold-a", &set("2")),
        Err(ResctrlError::File(_))
    ));
}

#[test]
fn domains_are_read_one_by_one() {
    let root = tempfile::tempdir().unwrap();
    let resctrl = tree(root.path(), 3);
    resctrl.make("pinfold-a").unwrap();
    let data = root
        .path()
        .join("sys/fs/resctrl/mon_groups/pinfold-a/mon_data");
    fs::write(data.join("mon_L3_00/llc_occupancy"), "4096\n").unwrap();
    fs::write(data.join("mon_L3_00/mbm_total_bytes"), "Unassigned\n").unwrap();
    fs::write(data.join("mon_L3_01/llc_occupancy"), "Unavailable\n").unwrap();
    fs::write(data.join("mon_L3_01/mbm_total_bytes"), "Error\n").unwrap();
    fs::remove_file(data.join("mon_L3_01/mbm_local_bytes")).unwrap();
    // Parts of a cache, and another resource.
    for other in [
        "mon_L3_00/mon_sub_L3_00",
        "mon_sub_L3_01",
        "mon_PERF_PKG_00",
    ] {
        fs::create_dir_all(data.join(other)).unwrap();
        fs::write(data.join(other).join("llc_occupancy"), "4096\n").unwrap();
    }
    let zero = CacheCounters {
        id: "0".to_owned(),
        occupancy: Some(Count::Bytes(4096)),
        total: Some(Count::Unassigned),
        local: Some(Count::Bytes(0)),
    };
    let one = CacheCounters {
        id: "1".to_owned(),
        occupancy: Some(Count::Unknown),
        total: Some(Count::Unknown),
        local: None,
    };
    assert_eq!(resctrl.read("pinfold-a").unwrap(), [zero, one]);
}
