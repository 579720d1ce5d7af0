//! The trained network: embeddings, two hidden layers with ReLU, a logit; and the gradients.
//!
//! Every sum has a fixed order in every thread, so that results do not depend on the number of threads.

use std::ops::Range;
use std::sync::Arc;

use super::Geometry;
use super::data::{Batch, Random};
use super::pool::ThreadPool;

/// The compute side of a worker: the shapes and the threads.
#[derive(Debug)]
pub struct Model {
    geometry: Geometry,
    pool: ThreadPool,
}

/// The result of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients {
    /// Mean log loss of the batch, in nats.
    pub loss: f32,
    /// For each row of the batch, `dim` numbers.
    pub rows: Vec<f32>,
    /// The gradients of the dense tensors, concatenated.
    pub dense: Vec<f32>,
}

/// A matrix with any stride, so that a transpose costs nothing.
#[derive(Clone)]
struct MatrixView {
    values: Arc<Vec<f32>>,
    row: usize,
    column: usize,
}

/// The starting values of an embedding row: small and different.
pub fn initial_row(geometry: &Geometry, row: u32) -> Vec<f32> {
    let mut random = Random::new(geometry.seed ^ (u64::from(row) << 20));
    (0..geometry.dim).map(|_| random.signed() * 0.1).collect()
}

/// The starting values of a dense tensor: weights scaled to their inputs, biases zero.
pub fn initial_tensor(geometry: &Geometry, tensor: usize) -> Vec<f32> {
    let [first, second] = geometry.hidden.map(|units| units as usize);
    let len = geometry.tensors().get(tensor).copied().unwrap_or(0);
    let inputs = match tensor {
        0 => geometry.inputs(),
        2 => first,
        4 => second,
        _ => return vec![0.0; len],
    };
    let mut random = Random::new(geometry.seed.wrapping_add(1000 + tensor as u64));
    let scale = (6.0 / inputs as f32).sqrt();
    (0..len).map(|_| random.signed() * scale).collect()
}

// === impl Model ===

impl Model {
    /// A model that computes with a pool of threads.
    pub fn new(geometry: Geometry, pool: ThreadPool) -> Self {
        Self { geometry, pool }
    }

    /// The number of threads in the pool.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Loss and gradients of a batch. `rows` holds `dim` numbers for each row of the batch, `dense` all dense tensors
    /// one after the other.
    pub fn step(&self, batch: &Batch, rows: &[f32], dense: &[f32]) -> Gradients {
        let (count, inputs) = (batch.labels.len(), self.geometry.inputs());
        let [first, second] = self.geometry.hidden.map(|units| units as usize);
        let mut rest = dense;
        let [w1, b1, w2, b2, w3, b3] = self.geometry.tensors().map(|len| {
            let (tensor, after) = rest.split_at(len);
            rest = after;
            Arc::new(tensor.to_vec())
        });

        // Forward.
        let x = self.gather(batch, rows);
        let h1 = self.layer(count, &MatrixView::plain(&x, inputs), &w1, first, &b1);
        let h2 = self.layer(count, &MatrixView::plain(&h1, first), &w2, second, &b2);
        let logits = self.product(count, &MatrixView::plain(&h2, second), second, &w3, 1);
        let (loss, dz) = loss(&logits, b3.first().copied().unwrap_or(0.0), &batch.labels);
        let dz = Arc::new(dz);

        // Backward, from the logit to the embeddings.
        let dw3 = self.product(second, &MatrixView::transposed(&h2, second), count, &dz, 1);
        let db3 = column_sums(&dz, 1);
        let dh2 = self.masked_product(count, &MatrixView::plain(&dz, 1), 1, &w3, second, &h2);
        let dw2 = self.product(
            first,
            &MatrixView::transposed(&h1, first),
            count,
            &dh2,
            second,
        );
        let db2 = column_sums(&dh2, second);
        let w2t = Arc::new(transpose(&w2, second));
        let dh1 = self.masked_product(
            count,
            &MatrixView::plain(&dh2, second),
            second,
            &w2t,
            first,
            &h1,
        );
        let dw1 = self.product(
            inputs,
            &MatrixView::transposed(&x, inputs),
            count,
            &dh1,
            first,
        );
        let db1 = column_sums(&dh1, first);
        let w1t = Arc::new(transpose(&w1, first));
        let dx = self.product(count, &MatrixView::plain(&dh1, first), first, &w1t, inputs);

        let dense = [dw1, db1, dw2, db2, dw3, db3].concat();
        Gradients {
            loss,
            rows: self.scatter(batch, &dx),
            dense,
        }
    }

    /// The examples' embeddings side by side: one row of inputs for each example.
    fn gather(&self, batch: &Batch, rows: &[f32]) -> Arc<Vec<f32>> {
        let (dim, inputs) = (self.geometry.dim as usize, self.geometry.inputs());
        let mut x = Vec::with_capacity(batch.labels.len() * inputs);
        for &place in &batch.places {
            x.extend_from_slice(&rows[place as usize * dim..][..dim]);
        }
        Arc::new(x)
    }

    /// The inputs' gradients summed up for each row, in the order of the examples.
    fn scatter(&self, batch: &Batch, dx: &[f32]) -> Vec<f32> {
        let dim = self.geometry.dim as usize;
        let mut rows = vec![0.0; batch.rows.len() * dim];
        for (&place, gradient) in batch.places.iter().zip(dx.chunks_exact(dim)) {
            for (sum, value) in rows[place as usize * dim..][..dim].iter_mut().zip(gradient) {
                *sum += value;
            }
        }
        rows
    }

    /// `relu(a · weights + bias)`, `width` wide.
    fn layer(
        &self,
        count: usize,
        a: &MatrixView,
        weights: &Arc<Vec<f32>>,
        width: usize,
        bias: &Arc<Vec<f32>>,
    ) -> Arc<Vec<f32>> {
        let depth = weights.len() / width;
        let (a, weights, bias) = (a.clone(), Arc::clone(weights), Arc::clone(bias));
        let mut out = Vec::with_capacity(count * width);
        let kernel = move |rows: Range<usize>, out: &mut Vec<f32>| {
            multiply(&a, depth, &weights, width, rows, out);
            for row in out.chunks_exact_mut(width) {
                for (value, bias) in row.iter_mut().zip(bias.iter()) {
                    *value = (*value + bias).max(0.0);
                }
            }
        };
        self.pool
            .compute(count, depth * width, &mut out, Box::new(kernel));
        Arc::new(out)
    }

    /// `a · b`, `count` rows of `width`, where `a` is `depth` wide.
    fn product(
        &self,
        count: usize,
        a: &MatrixView,
        depth: usize,
        b: &Arc<Vec<f32>>,
        width: usize,
    ) -> Vec<f32> {
        let (a, b) = (a.clone(), Arc::clone(b));
        let mut out = Vec::with_capacity(count * width);
        let kernel =
            move |rows: Range<usize>, out: &mut Vec<f32>| multiply(&a, depth, &b, width, rows, out);
        self.pool
            .compute(count, depth * width, &mut out, Box::new(kernel));
        out
    }

    /// The same, and zero wherever the unit `h` was not active, because a ReLU passes no gradient
    /// there.
    fn masked_product(
        &self,
        count: usize,
        a: &MatrixView,
        depth: usize,
        b: &Arc<Vec<f32>>,
        width: usize,
        h: &Arc<Vec<f32>>,
    ) -> Arc<Vec<f32>> {
        let (a, b, h) = (a.clone(), Arc::clone(b), Arc::clone(h));
        let mut out = Vec::with_capacity(count * width);
        let kernel = move |rows: Range<usize>, out: &mut Vec<f32>| {
            let active = &h[rows.start * width..rows.end * width];
            multiply(&a, depth, &b, width, rows, out);
            for (value, &unit) in out.iter_mut().zip(active) {
                if unit <= 0.0 {
                    *value = 0.0;
                }
            }
        };
        self.pool
            .compute(count, depth * width, &mut out, Box::new(kernel));
        Arc::new(out)
    }
}

// === impl MatrixView ===

impl MatrixView {
    fn plain(values: &Arc<Vec<f32>>, width: usize) -> Self {
        Self {
            values: Arc::clone(values),
            row: width,
            column: 1,
        }
    }

    fn transposed(values: &Arc<Vec<f32>>, width: usize) -> Self {
        Self {
            values: Arc::clone(values),
            row: 1,
            column: width,
        }
    }

    fn at(&self, row: usize, column: usize) -> f32 {
        self.values[row * self.row + column * self.column]
    }
}

/// Some rows of `a · b`: `out`, which is empty, becomes `rows.len()` rows of `width`.
///
/// Four rows at a time share each load of `b`. For each number the terms are added in the order of `depth`.
fn multiply(
    a: &MatrixView,
    depth: usize,
    b: &[f32],
    width: usize,
    rows: Range<usize>,
    out: &mut Vec<f32>,
) {
    out.resize(rows.len() * width, 0.0);
    for (block, first) in out.chunks_mut(4 * width).zip(rows.step_by(4)) {
        if block.len() == 4 * width {
            let (r0, rest) = block.split_at_mut(width);
            let (r1, rest) = rest.split_at_mut(width);
            let (r2, r3) = rest.split_at_mut(width);
            for (k, b) in b.chunks_exact(width).take(depth).enumerate() {
                let [a0, a1, a2, a3] = [0, 1, 2, 3].map(|row| a.at(first + row, k));
                let sums = r0
                    .iter_mut()
                    .zip(r1.iter_mut())
                    .zip(r2.iter_mut().zip(r3.iter_mut()));
                for (((s0, s1), (s2, s3)), b) in sums.zip(b) {
                    *s0 += a0 * b;
                    *s1 += a1 * b;
                    *s2 += a2 * b;
                    *s3 += a3 * b;
                }
            }
        } else {
            for (sums, row) in block.chunks_exact_mut(width).zip(first..) {
                for (k, b) in b.chunks_exact(width).take(depth).enumerate() {
                    let a = a.at(row, k);
                    add_scaled(sums, a, b);
                }
            }
        }
    }
}

/// Adds `factor` times `row` to `sums`.
fn add_scaled(sums: &mut [f32], factor: f32, row: &[f32]) {
    for (sum, value) in sums.iter_mut().zip(row) {
        *sum += factor * value;
    }
}

/// A matrix of rows of `width`, transposed.
fn transpose(values: &[f32], width: usize) -> Vec<f32> {
    (0..width)
        .flat_map(|column| values.iter().skip(column).step_by(width).copied())
        .collect()
}

fn column_sums(values: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0.0; width];
    for row in values.chunks_exact(width) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += value;
        }
    }
    sums
}

/// Mean log loss, and the derivative for each logit.
fn loss(logits: &[f32], bias: f32, labels: &[f32]) -> (f32, Vec<f32>) {
    let count = labels.len().max(1) as f32;
    let mut sum = 0.0_f64;
    let gradient = logits.iter().zip(labels).map(|(logit, &label)| {
        let z = logit + bias;
        // log(1 + e^z) - label * z, in a form without overflow for large z.
        sum += f64::from(z.max(0.0) + (-z.abs()).exp().ln_1p() - label * z);
        (1.0 / (1.0 + (-z).exp()) - label) / count
    });
    let gradient = gradient.collect();
    #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
    let mean = (sum / f64::from(count)) as f32;
    (mean, gradient)
}

#[cfg(test)]
mod tests {
    use super::super::data::Clicks;
    use super::*;

    const SMALL: Geometry = Geometry {
        features: 3,
        vocabulary: 4,
        dim: 2,
        hidden: [5, 3],
        seed: 7,
    };

    fn start(geometry: Geometry, size: usize) -> (Batch, Vec<f32>, Vec<f32>) {
        let batch = Clicks::new(geometry, 0).batch(size);
        let rows = batch
            .rows
            .iter()
            .flat_map(|&row| initial_row(&geometry, row))
            .collect();
        let dense = (0..6)
            .flat_map(|tensor| initial_tensor(&geometry, tensor))
            .collect();
        (batch, rows, dense)
    }

    #[test]
    fn gradients_agree_with_finite_differences() {
        let model = Model::new(SMALL, ThreadPool::new(1).unwrap());
        let (batch, mut rows, mut dense) = start(SMALL, 8);
        // Away from the kinks of ReLU and from vanishing embeddings, where differences say nothing.
        rows.iter_mut().for_each(|value| *value *= 10.0);
        dense
            .iter_mut()
            .zip(1_u8..)
            .for_each(|(value, n)| *value += f32::from(n % 5) * 0.05);
        let gradients = model.step(&batch, &rows, &dense);
        let loss = |rows: &[f32], dense: &[f32]| model.step(&batch, rows, dense).loss;
        let step = 1e-2_f32;
        let check = |what: &str, index: usize, up: f32, down: f32, gradient: f32| {
            let slope = (up - down) / (2.0 * step);
            let tolerance = 1e-3 + 0.03 * gradient.abs();
            assert!(
                (slope - gradient).abs() < tolerance,
                "{what} {index}: slope {slope}, gradient {gradient}"
            );
        };
        for index in 0..dense.len() {
            let moved = |by: f32| {
                let mut dense = dense.clone();
                dense[index] += by;
                loss(&rows, &dense)
            };
            check(
                "dense",
                index,
                moved(step),
                moved(-step),
                gradients.dense[index],
            );
        }
        for index in 0..rows.len() {
            let moved = |by: f32| {
                let mut rows = rows.clone();
                rows[index] += by;
                loss(&rows, &dense)
            };
            check(
                "row",
                index,
                moved(step),
                moved(-step),
                gradients.rows[index],
            );
        }
        let largest = gradients
            .dense
            .iter()
            .chain(&gradients.rows)
            .fold(0.0_f32, |max, g| max.max(g.abs()));
        assert!(
            largest > 0.05,
            "gradients too small to be checked: {largest}"
        );
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let geometry = Geometry::default();
        let (batch, rows, dense) = start(geometry, 50);
        let step = |threads| {
            Model::new(geometry, ThreadPool::new(threads).unwrap()).step(&batch, &rows, &dense)
        };
        let alone = step(1);
        assert!(alone.loss > 0.1);
        for threads in [2, 3, 7] {
            assert!(step(threads) == alone, "{threads} threads");
        }
    }

    #[test]
    fn a_huge_logit_is_no_overflow() {
        let (loss, gradient) = loss(&[200.0, -200.0], 0.0, &[0.0, 1.0]);
        assert_eq!(loss, 200.0);
        assert_eq!(gradient, [0.5, -0.5]);
    }
}
