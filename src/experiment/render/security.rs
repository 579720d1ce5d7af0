//! What the pods may do: no more than the Pod Security Standard `restricted` allows, unless the job asks for more.

use k8s_openapi::api::core::v1::{
    Capabilities, PodSecurityContext, SeccompProfile, SecurityContext,
};

use super::cluster::ResolvedJob;
use super::folder;

/// The user of the containers where the job names none.
const USER: u32 = 1000;

impl ResolvedJob<'_> {
    pub(super) fn is_root(&self) -> bool {
        self.user() == 0
    }

    fn user(&self) -> u32 {
        self.job.run_as_user.unwrap_or(USER)
    }

    /// Whether the pods get a token for the API server: only if the job names the account that it is for.
    pub(super) fn mounts_token(&self) -> Option<bool> {
        self.job.service_account.is_none().then_some(false)
    }

    pub(super) fn pod_security(&self) -> PodSecurityContext {
        let user = i64::from(self.user());
        // A new volume belongs to root. OnRootMismatch, because changing the group of each file of a data set would take minutes, for
        // every pod.
        let group = (!self.is_root() && folder::has_writable_claim(self.job)).then_some(user);
        PodSecurityContext {
            run_as_user: Some(user),
            run_as_non_root: (!self.is_root()).then_some(true),
            fs_group: group,
            fs_group_change_policy: group.map(|_| "OnRootMismatch".to_owned()),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                localhost_profile: None,
            }),
            ..PodSecurityContext::default()
        }
    }

    pub(super) fn container_security(&self) -> SecurityContext {
        SecurityContext {
            allow_privilege_escalation: Some(false),
            // Without capabilities, root can't even read the files of others, and who asks for root wants that.
            capabilities: (!self.is_root()).then(|| Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                add: None,
            }),
            ..SecurityContext::default()
        }
    }

    /// Warns of what a namespace with the standard `restricted` refuses, and of folders that the user can't write.
    pub(super) fn check_security(&self, warnings: &mut Vec<String>) {
        if self.is_root() {
            warnings.push(
                "runAsUser: 0 is root: a namespace with the Pod Security Standard restricted refuses the pods".to_owned(),
            );
        }
        for (name, folder) in folder::folders(self.job) {
            let Some(path) = &folder.host_path else {
                continue;
            };
            let writable = if self.is_root() || folder.read_only {
                String::new()
            } else {
                format!(
                    ", and on each node, user {} must be able to write {path:?} (runAsUser)",
                    self.user()
                )
            };
            warnings.push(format!(
                "{name}.hostPath: a namespace with the Pod Security Standards baseline or restricted refuses the pods{writable}"
            ));
        }
    }
}
