//! Synthetic clicks: skewed categorical features, and labels of a hidden teacher, so that the model
//! has something to learn.

use super::Geometry;

/// A generator of pseudo-random numbers with a fixed sequence for each seed (splitmix64).
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

/// Examples to train on, as indices into the embedding table.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The rows that occur, ascending, without duplicates.
    pub rows: Vec<u32>,
    /// For each example and feature, the place of its row in `rows`.
    pub places: Vec<u32>,
    /// The label of each example: 1 for a click, 0 otherwise.
    pub labels: Vec<f32>,
}

/// An endless stream of batches.
#[derive(Debug)]
pub struct Clicks {
    geometry: Geometry,
    random: Random,
    teacher: u64,
}

// === impl Random ===

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 (included) to 1 (excluded).
    pub fn unit(&mut self) -> f32 {
        // The 24 highest bits, because an f32 holds exactly as many.
        (self.bits() >> 40) as f32 / 16_777_216.0
    }

    /// A number from -1 to 1.
    pub fn signed(&mut self) -> f32 {
        self.unit() * 2.0 - 1.0
    }
}

// === impl Clicks ===

impl Clicks {
    /// The stream of one worker. All workers of a seed have the same teacher and different examples.
    pub fn new(geometry: Geometry, worker: u32) -> Self {
        let mut seeds = Random::new(geometry.seed);
        let (teacher, examples) = (seeds.bits(), seeds.bits());
        Self {
            geometry,
            random: Random::new(examples ^ (u64::from(worker) << 32)),
            teacher,
        }
    }

    /// The next `size` examples.
    pub fn batch(&mut self, size: usize) -> Batch {
        let features = self.geometry.features;
        let mut ids = Vec::with_capacity(size * features as usize);
        let mut labels = Vec::with_capacity(size);
        for _ in 0..size {
            let mut score = 0.0;
            for feature in 0..features {
                let row = feature * self.geometry.vocabulary + self.value();
                score += self.taste(row);
                ids.push(row);
            }
            // A sum of independent tastes grows with the root of their number. The 3 makes the
            // classes clear.
            let chance = 1.0 / (1.0 + (-3.0 * score / (features as f32).sqrt()).exp());
            labels.push(if self.random.unit() < chance {
                1.0
            } else {
                0.0
            });
        }
        let mut rows = ids.clone();
        rows.sort_unstable();
        rows.dedup();
        let place =
            |id: &u32| u32::try_from(rows.partition_point(|row| row < id)).unwrap_or(u32::MAX);
        let places = ids.iter().map(place).collect();
        Batch {
            rows,
            places,
            labels,
        }
    }

    /// A feature's value. Low ones are far more frequent, as with real users and items.
    fn value(&mut self) -> u32 {
        let skewed = self.random.unit().powi(3) * self.geometry.vocabulary as f32;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to the vocabulary"
        )]
        let value = skewed as u32;
        value.min(self.geometry.vocabulary.saturating_sub(1))
    }

    /// The teacher's value of a row, from -1 to 1.
    fn taste(&self, row: u32) -> f32 {
        Random::new(self.teacher ^ u64::from(row)).signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_refers_to_rows_of_its_features() {
        let geometry = Geometry::default();
        let batch = Clicks::new(geometry, 0).batch(100);
        assert!(batch.rows.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(batch.places.len(), 100 * geometry.features as usize);
        for (slot, &place) in batch.places.iter().enumerate() {
            let feature = u32::try_from(slot).unwrap() % geometry.features;
            assert_eq!(batch.rows[place as usize] / geometry.vocabulary, feature);
        }
        let clicks: f32 = batch.labels.iter().sum();
        assert!((20.0..80.0).contains(&clicks), "{clicks}");
    }

    #[test]
    fn a_worker_repeats_itself_and_differs_from_the_others() {
        let batch = |worker| Clicks::new(Geometry::default(), worker).batch(10);
        assert_eq!(batch(0), batch(0));
        assert_ne!(batch(0), batch(1));
    }
}
