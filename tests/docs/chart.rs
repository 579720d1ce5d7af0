//! The page of the chart's values. `deploy/generate` writes the tables; a test of `tests/deploy.rs` compares them.

use std::collections::BTreeSet;

use crate::markdown::DocumentPage;
use crate::values::values_of_the_schema;

const PAGE: &str = "docs/reference/chart.md";

#[test]
fn every_value_of_the_chart_is_on_the_page() {
    let tables = DocumentPage::read(PAGE).tables();
    let mut named = BTreeSet::new();
    for row in tables.iter().flat_map(|table| &table[1..]) {
        let value = row[0].trim_matches('`').to_owned();
        assert!(row[2].ends_with('.'), "{PAGE}: {value}: {}", row[2]);
        assert!(named.insert(value), "{PAGE}: {} is there twice", row[0]);
    }
    assert_eq!(named, values_of_the_schema(), "{PAGE}: the values");
}
