//! dbench: so many clients of a file server, from a recorded load.

use std::path::Path;
use std::time::Duration;

use super::case::{Case, Scale};
use crate::failure::{Failure, Result};
use crate::meter::metered;
use crate::peers::Mounted;
use crate::process::{run, tool};
use crate::samples::{Better, Measured};

/// The recorded load, where Debian puts it.
const LOAD: &str = "/usr/share/dbench/client.txt";

pub fn cases(scale: Scale) -> Vec<Case> {
    let wanted: &[(u32, u32)] = match scale {
        Scale::Tiny => &[(1, 2)],
        Scale::Quick => &[(1, 10), (16, 10)],
        Scale::Usual => &[(1, 20), (12, 20), (16, 20), (40, 20)],
        Scale::Full => &[(1, 120), (12, 120), (16, 300), (40, 200)],
    };
    wanted
        .iter()
        .map(|&(clients, seconds)| {
            let plural = if clients == 1 { "" } else { "s" };
            let title = format!("dbench, {clients} client{plural}, {seconds} s");
            let run =
                move |mounted: &mut Mounted, measured: &mut Measured| measure(mounted, measured, clients, seconds);
            Case::new("dbench", format!("dbench-{clients}"), title, "throughput", run).programs(&["dbench"])
        })
        .collect()
}

fn measure(mounted: &mut Mounted, measured: &mut Measured, clients: u32, seconds: u32) -> Result<()> {
    let (printed, usage) = metered(mounted, || run_for(mounted.directory(), clients, seconds))?;
    let operations = parse(&printed, measured)?;
    usage.per_operation(measured, operations);
    Ok(())
}

/// Returns the throughput of one client in MB/s.
pub fn throughput(place: &Path, seconds: u32) -> Result<f64> {
    let mut measured = Measured::default();
    parse(&run_for(place, 1, seconds)?, &mut measured)?;
    Ok(measured.metrics["throughput"].value)
}

fn run_for(place: &Path, clients: u32, seconds: u32) -> Result<String> {
    if !Path::new(LOAD).exists() {
        return Err(Failure::Impossible(format!("{LOAD} is missing (in Debian's package dbench)")));
    }
    let mut dbench = tool("dbench")?;
    dbench.args(["-c", LOAD, "-t", &seconds.to_string(), "-D"]).arg(place).arg(clients.to_string());
    run(&mut dbench, Duration::from_secs(u64::from(seconds) * 3 + 300))
}

/// Reads dbench's output. Returns how many operations there were.
fn parse(printed: &str, measured: &mut Measured) -> Result<f64> {
    let wrong = || Failure::new(format!("dbench printed something unexpected:\n{printed}"));
    // It reports that it continues without a barrier between its clients if the machine has no
    // System V semaphores.
    let mut lines = printed.lines().filter(|line| !line.contains("barrier semaphore"));
    if lines.any(|line| line.contains("failed") || line.contains("ERROR")) {
        return Err(wrong());
    }
    let mut operations = 0.0;
    let table = printed.lines().skip_while(|line| !line.starts_with(" ----")).skip(1);
    for line in table.take_while(|line| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let &[name, count, average, longest] = fields.as_slice() else { return Err(wrong()) };
        let number = |text: &str| text.parse::<f64>().map_err(|_| wrong());
        operations += number(count)?;
        let name = name.to_lowercase();
        measured.add(format!("{name} average"), number(average)?, "ms", Better::Lower);
        measured.add(format!("{name} longest"), number(longest)?, "ms", Better::Lower);
    }
    let last = printed.lines().find_map(|line| line.strip_prefix("Throughput ")).ok_or_else(wrong)?;
    let throughput = last.split(' ').next().and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
    measured.add("throughput", throughput, "MB/s", Better::Higher);
    let longest = last.split("max_latency=").nth(1).and_then(|text| text.split(' ').next()?.parse().ok());
    measured.add("longest", longest.ok_or_else(wrong)?, "ms", Better::Lower);
    Ok(operations)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
   1  cleanup   2 sec

 Operation      Count    AvgLat    MaxLat
 ----------------------------------------
 NTCreateX      14557     0.034     8.272
 Flush           1024     0.765    14.754

Throughput 273.762 MB/sec  1 clients  1 procs  max_latency=13.623 ms
";

    #[test]
    fn the_output_of_dbench_is_parsed() {
        let mut measured = Measured::default();
        assert_eq!(parse(PRINTED, &mut measured), Ok(15581.0));
        let value = |name: &str| measured.metrics[name].value;
        assert_eq!((value("throughput"), value("longest")), (273.762, 13.623));
        assert_eq!((value("flush average"), value("ntcreatex longest")), (0.765, 8.272));
    }

    #[test]
    fn failures_are_not_taken_for_results() {
        for bad in ["", "(3) ERROR: handle 1 was not found\n", &PRINTED.replace("Throughput", "")] {
            assert!(parse(bad, &mut Measured::default()).is_err(), "{bad}");
        }
        let failed = format!("open failed\n{PRINTED}");
        assert!(parse(&failed, &mut Measured::default()).is_err());
    }
}
