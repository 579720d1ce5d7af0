//! Quantities of resources in plans and jobs.

use crate::pod::quantity;
use crate::scene::Amounts;

/// Quantities in the grammar of the `pod` module.
pub const AMOUNTS: Amounts = Amounts {
    read: |resource, text| {
        let amount = if resource == "cpu" {
            quantity::cpu_millis(text)
        } else {
            quantity::bytes(text)
        };
        amount.map_err(|error| error.to_string())
    },
    write: |resource, amount| match resource {
        "cpu" => quantity::format_cpu(amount),
        "memory" | "ephemeral-storage" => quantity::format_bytes(amount),
        _ => amount.to_string(),
    },
};
