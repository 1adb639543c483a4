//! Asks a disk by smartctl(8), and reads its answer.

use crate::deadline_command::{self, RunningCommand};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io;
use std::process::Command;

/// What a disk has answered.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum SmartAnswer {
    Reading(Box<Reading>),
    /// It sleeps, and was left asleep.
    Asleep,
    /// It has no SMART, or did not answer.
    Nothing,
}

/// The figures of a disk. What is missing, it does not tell.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Reading {
    pub(super) model: Option<String>,
    pub(super) serial: Option<String>,
    pub(super) temperature: Option<i64>,
    pub(super) hours: Option<u64>,
    /// Its own verdict.
    pub(super) passed: Option<bool>,
    pub(super) counts: Counts,
    /// Attributes that are at or below the threshold of the maker.
    pub(super) below: Vec<String>,
    /// Bits of NVMe's critical warning.
    pub(super) critical: u64,
    /// NVMe: the share of its life that is used, in percent.
    pub(super) used: Option<u64>,
}

/// What only grows while a disk wears out or breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, Deserialize)]
pub(super) struct Counts {
    /// Sectors that were replaced by spare ones.
    #[serde(default)]
    pub(super) reallocated: u64,
    /// Sectors that cannot be read now.
    #[serde(default)]
    pub(super) pending: u64,
    /// Errors that reached programs, or sectors that could not be read when the disk checked itself.
    #[serde(default)]
    pub(super) uncorrectable: u64,
}

/// Begins to ask the disk of this name. A disk that spins is not woken; one that does not may claim to sleep.
pub(super) fn start(name: &str, spins: bool) -> io::Result<RunningCommand> {
    let mut command = Command::new("smartctl");
    command.args(["--json=c", "--info", "--health", "--attributes"]);
    if spins {
        command.arg("--nocheck=standby");
    }
    deadline_command::start(command.arg(format!("/dev/{name}")))
}

/// Reads what smartctl has printed.
pub(super) fn read(json: &[u8]) -> SmartAnswer {
    let Ok(output) = serde_json::from_slice::<Output>(json) else { return SmartAnswer::Nothing };
    let sleeps = |message: &Message| ["STANDBY", "SLEEP"].iter().any(|word| message.string.contains(word));
    if output.smartctl.messages.iter().any(sleeps) && output.smart_status.is_none() {
        return SmartAnswer::Asleep;
    }
    let reading = output.reading();
    // Without SMART there is at most a name.
    if reading.passed.is_some() || reading.temperature.is_some() || reading.hours.is_some() {
        SmartAnswer::Reading(Box::new(reading))
    } else {
        SmartAnswer::Nothing
    }
}

/// The output of `smartctl --json`, as far as it matters. Later versions add fields.
#[derive(Deserialize)]
struct Output {
    #[serde(default)]
    smartctl: Smartctl,
    model_name: Option<String>,
    scsi_model_name: Option<String>,
    serial_number: Option<String>,
    temperature: Option<Temperature>,
    power_on_time: Option<PowerOnTime>,
    smart_status: Option<SmartStatus>,
    #[serde(default)]
    ata_smart_attributes: Attributes,
    nvme_smart_health_information_log: Option<NvmeLog>,
    scsi_grown_defect_list: Option<u64>,
    #[serde(default)]
    scsi_error_counter_log: BTreeMap<String, ScsiErrors>,
}

#[derive(Default, Deserialize)]
struct Smartctl {
    #[serde(default)]
    messages: Vec<Message>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    string: String,
}

#[derive(Deserialize)]
struct Temperature {
    current: Option<i64>,
}

#[derive(Deserialize)]
struct PowerOnTime {
    hours: Option<u64>,
}

#[derive(Deserialize)]
struct SmartStatus {
    passed: Option<bool>,
}

#[derive(Default, Deserialize)]
struct Attributes {
    #[serde(default)]
    table: Vec<Attribute>,
}

#[derive(Deserialize)]
struct Attribute {
    id: u16,
    #[serde(default)]
    name: String,
    /// `now`, `past`, or nothing.
    #[serde(default)]
    when_failed: String,
    raw: Raw,
}

#[derive(Deserialize)]
struct Raw {
    value: u64,
}

#[derive(Deserialize)]
struct NvmeLog {
    #[serde(default)]
    critical_warning: u64,
    percentage_used: Option<u64>,
    #[serde(default)]
    media_errors: u64,
}

#[derive(Deserialize)]
struct ScsiErrors {
    #[serde(default)]
    total_uncorrected_errors: u64,
}

impl Output {
    fn reading(self) -> Reading {
        // Makers pack more than the number of sectors into the upper bytes of some of them.
        let count = |id: u16| {
            let table = &self.ata_smart_attributes.table;
            table.iter().find(|one| one.id == id).map_or(0, |one| one.raw.value & 0xffff_ffff)
        };
        let scsi: u64 =
            self.scsi_error_counter_log.values().map(|errors| errors.total_uncorrected_errors).sum();
        let nvme = self.nvme_smart_health_information_log.as_ref();
        let counts = Counts {
            reallocated: count(5) + self.scsi_grown_defect_list.unwrap_or(0),
            pending: count(197),
            uncorrectable: count(187).max(count(198)) + scsi + nvme.map_or(0, |log| log.media_errors),
        };
        let failed = self.ata_smart_attributes.table.iter().filter(|one| one.when_failed == "now");
        Reading {
            below: failed.map(|one| one.name.replace('_', " ")).collect(),
            counts,
            critical: nvme.map_or(0, |log| log.critical_warning),
            used: nvme.and_then(|log| log.percentage_used),
            model: self.model_name.or(self.scsi_model_name),
            serial: self.serial_number,
            temperature: self.temperature.and_then(|temperature| temperature.current),
            hours: self.power_on_time.and_then(|time| time.hours),
            passed: self.smart_status.and_then(|status| status.passed),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A disk of a home server, shortened.
    pub(in crate::disks) const ATA: &str = r#"{"json_format_version":[1,0],"smartctl":{"version":[7,4],"exit_status":0},
        "device":{"name":"/dev/sda","type":"sat","protocol":"ATA"},"model_name":"WDC WD40EFRX-68N32N0",
        "serial_number":"WD-WCC7K0000001","rotation_rate":5400,"smart_status":{"passed":true},
        "ata_smart_attributes":{"revision":16,"table":[
        {"id":5,"name":"Reallocated_Sector_Ct","value":200,"worst":200,"thresh":140,"when_failed":"","raw":{"value":0,"string":"0"}},
        {"id":187,"name":"Reported_Uncorrect","value":100,"worst":100,"thresh":0,"when_failed":"","raw":{"value":2,"string":"2"}},
        {"id":194,"name":"Temperature_Celsius","value":115,"worst":105,"thresh":0,"when_failed":"","raw":{"value":35,"string":"35"}},
        {"id":197,"name":"Current_Pending_Sector","value":200,"worst":200,"thresh":0,"when_failed":"","raw":{"value":8,"string":"8"}},
        {"id":198,"name":"Offline_Uncorrectable","value":100,"worst":253,"thresh":0,"when_failed":"","raw":{"value":1,"string":"1"}}]},
        "power_on_time":{"hours":41234},"power_cycle_count":52,"temperature":{"current":35}}"#;

    fn reading(json: &str) -> Reading {
        match read(json.as_bytes()) {
            SmartAnswer::Reading(reading) => *reading,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_ata_disk_tells_sectors() {
        let found = reading(ATA);
        assert_eq!(found.model.as_deref(), Some("WDC WD40EFRX-68N32N0"));
        assert_eq!(found.serial.as_deref(), Some("WD-WCC7K0000001"));
        assert_eq!((found.temperature, found.hours, found.passed), (Some(35), Some(41_234), Some(true)));
        assert_eq!(found.counts, Counts { reallocated: 0, pending: 8, uncorrectable: 2 });
        assert!(found.below.is_empty());
    }

    #[test]
    fn an_attribute_below_its_threshold_is_named() {
        let failed = ATA.replacen(r#""when_failed":"""#, r#""when_failed":"now""#, 1);
        assert_eq!(reading(&failed).below, ["Reallocated Sector Ct"]);
    }

    #[test]
    fn nvme_and_sas_are_read_too() {
        let nvme = r#"{"smartctl":{"exit_status":0},"device":{"protocol":"NVMe"},"model_name":"Samsung SSD 970 EVO 1TB",
            "serial_number":"S5H9NX0000","smart_status":{"passed":true,"nvme":{"value":0}},
            "nvme_smart_health_information_log":{"critical_warning":4,"temperature":38,"available_spare":100,
            "available_spare_threshold":10,"percentage_used":3,"media_errors":7,"power_on_hours":99},
            "temperature":{"current":38},"power_on_time":{"hours":99}}"#;
        let found = reading(nvme);
        assert_eq!((found.critical, found.used, found.counts.uncorrectable), (4, Some(3), 7));
        let sas = r#"{"smartctl":{"exit_status":0},"device":{"protocol":"SCSI"},"scsi_model_name":"SEAGATE ST4000NM0023",
            "serial_number":"Z1Z0000","smart_status":{"passed":true},"temperature":{"current":30},
            "scsi_grown_defect_list":3,"scsi_error_counter_log":{"read":{"total_uncorrected_errors":1},
            "write":{"total_uncorrected_errors":2}}}"#;
        let found = reading(sas);
        assert_eq!(found.model.as_deref(), Some("SEAGATE ST4000NM0023"));
        assert_eq!(found.counts, Counts { reallocated: 3, pending: 0, uncorrectable: 3 });
    }

    #[test]
    fn sleep_and_silence_are_told_apart() {
        for mode in ["STANDBY", "STANDBY BY COMMAND", "SLEEP"] {
            let asleep = format!(
                r#"{{"smartctl":{{"exit_status":2,"messages":[{{"string":"Device is in {mode} mode, exit(2)","severity":"information"}}]}},
                "device":{{"name":"/dev/sda"}}}}"#
            );
            assert_eq!(read(asleep.as_bytes()), SmartAnswer::Asleep, "{mode}");
        }
        let none = r#"{"smartctl":{"exit_status":1,"messages":[{"string":"/dev/loop0: Unable to detect device type"}]}}"#;
        for silent in [none, "", "smartctl 7.3", "[]", r#"{"model_name":"USB stick"}"#] {
            assert_eq!(read(silent.as_bytes()), SmartAnswer::Nothing, "{silent}");
        }
    }
}
