//! The page in a browser.

use std::fs;
use std::path::Path;

use pinfold::experiment::page;
use pinfold::experiment::results::Outcome;

use super::browser::Page;
use super::made::{self, Made};
use super::{gate, outcome};

/// Writes a page, and opens it. `PINFOLD_TEST_PICTURES` names a folder for pictures of it.
async fn opened(outcome: &Outcome, file: &Path) -> Page {
    fs::write(file, page(outcome)).unwrap();
    Page::open(file).await
}

/// The elements whose text has too little contrast to what is behind it (WCAG 2: 4.5), with the contrast.
const PALE: &str = r"(() => {
  const parse = c => { const n = c.match(/[\d.]+/g).map(Number); return [n[0], n[1], n[2], n.length > 3 ? n[3] : 1]; };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const behind = e => {
    const layers = [];
    for (let one = e; one; one = one.parentElement) layers.push(parse(getComputedStyle(one).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const light = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const bad = [];
  document.querySelectorAll('details').forEach(d => d.open = true);
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || ['SCRIPT', 'STYLE', 'title'].includes(e.tagName)) continue;
    const style = getComputedStyle(e), back = behind(e);
    const ink = over(parse(e.namespaceURI.endsWith('svg') ? style.fill : style.color), back);
    const [a, b] = [light(ink), light(back)].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) bad.push(e.tagName + ' ' + e.className + ': ' + contrast.toFixed(2) + ' ' + e.textContent.slice(0, 40));
  }
  return bad;
})()";

/// What reaches over the right edge of the page.
const WIDE: &str = r"(() => {
  document.querySelectorAll('details').forEach(d => d.open = true);
  const root = document.documentElement;
  if (root.scrollWidth <= root.clientWidth) return [];
  return [root.scrollWidth + ' of ' + root.clientWidth].concat([...document.querySelectorAll('body *')]
    .filter(e => !e.closest('.wide') && e.getBoundingClientRect().right > root.clientWidth + 1)
    .slice(0, 5).map(e => e.tagName + ' ' + e.className + ' ' + e.textContent.slice(0, 40)));
})()";

/// The outcomes that the page is tried with.
fn outcomes() -> Vec<(&'static str, Outcome)> {
    let (experiment, runs) = made::with_losses();
    let made = |made: Made| {
        let experiment = made.experiment();
        outcome(&experiment, &made.runs(&experiment))
    };
    vec![
        ("twenty", outcome(&experiment, &runs)),
        (
            "few",
            made(Made {
                repeats: 3,
                emulated: true,
                shared_counter: true,
                job: "</script><img src=x onerror=alert(1)>\u{202e}\"'&".to_owned(),
                ..Made::default()
            }),
        ),
        ("empty", outcome(&experiment, &[])),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_readable_at_every_width_light_and_dark() {
    if !gate::meant_for_this_machine("Debian's chromium") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let pictures = std::env::var_os("PINFOLD_TEST_PICTURES");
    for (name, outcome) in outcomes() {
        let mut page = opened(&outcome, &folder.path().join(format!("{name}.html"))).await;
        if let Some(folder) = &pictures {
            for (scheme, width) in [("light", 320), ("light", 1100), ("dark", 1100)] {
                page.show(width, scheme).await;
                let file = Path::new(folder).join(format!("{name}-{scheme}-{width}.png"));
                fs::write(file, page.picture().await).unwrap();
            }
        }
        for scheme in ["light", "dark"] {
            for width in [320, 768, 1600] {
                page.show(width, scheme).await;
                let wide = page.evaluate(WIDE).await;
                assert_eq!(wide, serde_json::json!([]), "{name}, {scheme}, {width}");
            }
            let pale = page.evaluate(PALE).await;
            assert_eq!(pale, serde_json::json!([]), "{name}, {scheme}");
        }
        assert_eq!(page.complaints, Vec::<String>::new(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_numbers_of_the_json_stand_in_the_page() {
    if !gate::meant_for_this_machine("Debian's chromium") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, outcome) in outcomes() {
        let mut page = opened(&outcome, &folder.path().join(format!("{name}.html"))).await;
        let embedded = page
            .evaluate("document.getElementById('outcome').textContent")
            .await;
        let embedded: serde_json::Value = serde_json::from_str(embedded.as_str().unwrap()).unwrap();
        let written = serde_json::to_string(&outcome).unwrap();
        let written: serde_json::Value = serde_json::from_str(&written).unwrap();
        assert!(embedded == written, "{name}: {embedded}");
        let text = page.evaluate("document.body.textContent").await;
        let text = text.as_str().unwrap();
        let figures = pinfold::text::units::figures;
        for condition in &outcome.conditions {
            for run in &condition.runs {
                assert!(text.contains(&figures(run.value)), "{name}: {run:?}");
            }
        }
        for answer in outcome.answers.iter().chain(&outcome.others) {
            let change = answer
                .estimate
                .map(|one| pinfold::text::units::change_span(one.low, one.high));
            assert!(
                change.is_none_or(|words| text.contains(&words)),
                "{name}: {answer:?}"
            );
        }
        // A dot for each run, and one for each repeat of a comparison.
        let dots = page
            .evaluate("document.querySelectorAll('.draw circle').length")
            .await;
        let runs: usize = outcome.conditions.iter().map(|one| one.runs.len()).sum();
        let ratios = outcome.answers.iter().chain(&outcome.others);
        let ratios: usize = ratios.map(|one| one.ratios.len()).sum();
        assert_eq!(dots, runs + ratios, "{name}");
        // Nothing acts, whatever pods and jobs are called.
        let acting =
            "document.querySelectorAll('img, iframe, link, object, script:not([type])').length";
        assert_eq!(page.evaluate(acting).await, 0, "{name}");
        let reachable = "[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.hash)) \
                         && [...document.querySelectorAll('.wide')].every(e => e.tabIndex === 0)";
        assert_eq!(page.evaluate(reachable).await, true, "{name}");
    }
}
