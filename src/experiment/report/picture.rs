//! [`pictures`]: a report as drawings.

use super::analysis::RunReport;
use super::chart::{BarRow, Chart};
use super::compare::ExperimentReport;
use super::figures::{bytes, number, percent};
use super::query::Measure;
use super::task_use::TaskUse;

/// A drawing and the file name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagram {
    /// Its file's name.
    pub file: String,
    /// The subject of the picture.
    pub title: String,
    /// The SVG.
    pub svg: String,
}

/// A drawing for each run. A drawing of all runs comes first if the report has several runs.
pub fn pictures(report: &ExperimentReport) -> Vec<Diagram> {
    let mut all = Vec::new();
    if report.runs.len() > 1 {
        all.push(Diagram {
            file: "runs.svg".to_owned(),
            title: "All runs".to_owned(),
            svg: beside(report),
        });
    }
    for (at, run) in report.runs.iter().enumerate() {
        all.push(Diagram {
            file: format!("run-{}.svg", at + 1),
            title: format!("Run {}", run.name),
            svg: of_run(run),
        });
    }
    all
}

fn of_run(run: &RunReport) -> String {
    let mut chart = Chart::new(&format!(
        "{}: {}/{}, {}",
        run.name, run.namespace, run.job, run.from
    ));
    let servers: Vec<&TaskUse> = run.server_tasks().collect();
    let balances = [run.servers.traffic.as_ref(), run.servers.cpu.as_ref()];
    if balances.iter().any(Option::is_some) {
        let of = |task: &&TaskUse| -> BarRow {
            let part = |at: usize| balances.get(at).copied().flatten()?.share_of(&task.task);
            (task.task.clone(), vec![part(0), part(1)])
        };
        let rows: Vec<BarRow> = servers.iter().map(of).collect();
        chart.bars(
            "Parameter servers: shares",
            &["bytes", "CPU time"],
            &rows,
            percent,
        );
    }
    for (measure, curves) in &run.curves {
        let is_server = |task: &str| servers.iter().any(|entry| entry.task == task);
        let (of_servers, others): (Vec<_>, Vec<_>) = curves
            .iter()
            .cloned()
            .partition(|(task, _)| is_server(task));
        let (title, show): (&str, fn(f64) -> String) = match measure {
            Measure::Cpu => ("CPUs busy", number),
            Measure::Steps => ("Steps per second", number),
            _ => ("Bytes sent per second", bytes),
        };
        for (who, curves) in [("parameter servers", of_servers), ("other tasks", others)] {
            if !curves.is_empty() {
                chart.curves(&format!("{title}, {who}"), run.seconds, &curves, show);
            }
        }
    }
    chart.finish()
}

fn beside(report: &ExperimentReport) -> String {
    let mut chart = Chart::new("Runs side by side");
    let mut figure =
        |title: &str, show: fn(f64) -> String, value: &dyn Fn(&RunReport) -> Option<f64>| {
            let rows: Vec<BarRow> = report
                .runs
                .iter()
                .map(|run| (run.name.clone(), vec![value(run)]))
                .collect();
            if rows
                .iter()
                .any(|(_, values)| values.iter().any(Option::is_some))
            {
                chart.bars(title, &[], &rows, show);
            }
        };
    figure("Steps per second", number, &RunReport::steps_per_second);
    figure(
        "Bytes sent by the parameter servers per second",
        bytes,
        &|run| run.servers_use()?.sent_bytes_per_second,
    );
    figure("CPUs used by workers", number, &|run| {
        run.role("worker")?.cpus_used
    });
    figure("CPUs used by parameter servers", number, &|run| {
        run.servers_use()?.cpus_used
    });
    figure(
        "The busiest parameter server's bytes / mean",
        number,
        &|run| Some(run.servers.traffic.as_ref()?.max_over_mean),
    );
    figure("Scaling efficiency (1 is linear)", number, &|run| {
        report
            .efficiency
            .iter()
            .find(|entry| entry.run == run.name)
            .map(|entry| entry.efficiency)
    });
    chart.finish()
}
