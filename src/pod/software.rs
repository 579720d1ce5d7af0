//! [`software`]: the machine learning software of a container, as visible from outside. Thread
//! counts depend on it.

use serde::Serialize;

use super::command::words;
use super::operator_labels::OPERATOR;
use super::role::option;
use super::variables::{TF_CONFIG, TORCHRUN};
use super::{Container, Pod, PodRole, Recognition};

/// The machine learning software of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Software {
    #[serde(rename_all = "camelCase")]
    Tensorflow {
        /// Whether the version is older than 1.14, the first version that reads the thread variables; `None` if
        /// unknown.
        before_variables: Option<bool>,
        /// Whether the container runs a `tf.train.Server`, whose threads come on top of the pools.
        server: bool,
    },
    Pytorch,
    #[default]
    Unknown,
}

/// The first TensorFlow that reads `TF_NUM_INTRAOP_THREADS`.
const READS_VARIABLES: (u32, u32) = (1, 14);

/// The software of a container. The evidence is the command line, the environment, the operator's label, the
/// container name that the operator requires, and the image.
pub(super) fn software(pod: &Pod, recognition: &Recognition, container: &Container) -> Software {
    let words = words(&container.args);
    let operator = pod.labels.get(OPERATOR).map(String::as_str);
    let has_variable = |name: &str| container.env.contains_key(name);
    let image = container.image.split('@').next().unwrap_or_default();
    let image = image
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    // The options of common manifest templates and of TensorFlow's own examples.
    let hosts = option(
        &words,
        &["ps_hosts", "ps-hosts", "worker_hosts", "worker-hosts"],
    )
    .is_some();
    let runs = |name: &str| {
        words
            .iter()
            .any(|word| word.rsplit('/').next() == Some(name))
    };
    let tensorflow = hosts
        || has_variable(TF_CONFIG)
        || operator == Some("tfjob-controller")
        || container.name == "tensorflow"
        || image.contains("tensorflow")
        || runs("run.sh") && matches!(recognition.role, PodRole::Ps | PodRole::Worker);
    if tensorflow {
        let before_variables = version(&image).map(|version| version < READS_VARIABLES);
        let member = matches!(
            recognition.role,
            PodRole::Ps | PodRole::Worker | PodRole::Chief | PodRole::Evaluator
        );
        return Software::Tensorflow {
            before_variables,
            server: hosts || has_variable(TF_CONFIG) || member,
        };
    }
    let torch = operator == Some("pytorchjob-controller")
        || container.name == "pytorch"
        || image.contains("torch")
        || runs("torchrun")
        || words
            .iter()
            .any(|word| word.starts_with("torch.distributed"))
        || container.env.keys().any(|name| name.starts_with(TORCHRUN));
    if torch {
        Software::Pytorch
    } else {
        Software::Unknown
    }
}

/// TensorFlow's version in an image's name and tag: `tensorflow:1.3.0`, `tensorflow-1.12.3-py3`, `tensorflow1.3.0`.
fn version(image: &str) -> Option<(u32, u32)> {
    let (_, rest) = image.rsplit_once("tensorflow")?;
    let rest = rest.trim_start_matches([':', '-', '_', 'v', '=']);
    let mut numbers = rest.split(|letter: char| !letter.is_ascii_digit());
    // A number without a point is a build or a date.
    let (major, minor) = (numbers.next()?, numbers.next()?);
    let dotted = rest.strip_prefix(major)?.starts_with('.');
    dotted.then_some(())?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::EnvSource;

    fn of(image: &str, command: &str, variables: &[&str]) -> Software {
        let value = |name: &&str| ((*name).to_owned(), EnvSource::Value("x".to_owned()));
        let container = Container {
            name: "main".to_owned(),
            image: image.to_owned(),
            args: vec![command.to_owned()].into(),
            env: variables.iter().map(value).collect(),
            ..Container::default()
        };
        let pod = Pod {
            containers: vec![container.clone()],
            ..Pod::default()
        };
        software(&pod, &crate::pod::recognise(&pod), &container)
    }

    #[test]
    fn software_is_visible_from_outside() {
        let tensorflow = |before_variables, server| Software::Tensorflow {
            before_variables,
            server,
        };
        for (image, command, variables, found) in [
            (
                "hub/tensorflow1.3.0",
                "sleep 1",
                &[][..],
                tensorflow(Some(true), false),
            ),
            (
                "tensorflow/tensorflow:1.13.2-py3",
                "python x.py",
                &[],
                tensorflow(Some(true), false),
            ),
            (
                "tensorflow/tensorflow:1.14.0",
                "python x.py",
                &[],
                tensorflow(Some(false), false),
            ),
            (
                "tensorflow/tensorflow:2.21.0",
                "python x.py",
                &["TF_CONFIG"],
                tensorflow(Some(false), true),
            ),
            (
                "tensorflow/tensorflow:latest",
                "python x.py",
                &[],
                tensorflow(None, false),
            ),
            (
                "registry/team/tensorflow:20240101",
                "python x.py",
                &[],
                tensorflow(None, false),
            ),
            (
                "web",
                "python a.py --ps_hosts=a:2222 --worker_hosts=b:2222",
                &[],
                tensorflow(None, true),
            ),
            ("pytorch/pytorch:2.9", "python x.py", &[], Software::Pytorch),
            (
                "web",
                "torchrun --nproc_per_node=2 x.py",
                &[],
                Software::Pytorch,
            ),
            (
                "web",
                "python -m torch.distributed.run x.py",
                &[],
                Software::Pytorch,
            ),
            ("web", "python x.py", &["PET_NNODES"], Software::Pytorch),
            ("nginx:1.3", "nginx", &[], Software::Unknown),
        ] {
            assert_eq!(
                of(image, command, variables),
                found,
                "{image} {command} {variables:?}"
            );
        }
    }
}
