// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Numbers of others that validation and reports compare with.

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::cluster::Traffic;
use crate::micro::Case;
use crate::scheme::Scheme;

/// All anchors.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anchors {
    /// Small cases.
    pub small: Vec<Small>,
    /// Open-loop clusters.
    pub cluster: Vec<ClusterAnchor>,
    /// Clusters of figure 11 of the HPCC paper.
    pub figure: Vec<Figure>,
}

/// A small case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Small {
    /// The case.
    pub case: Case,
    /// The algorithm.
    pub scheme: Scheme,
    /// Percent; of the victim in its case.
    pub goodput: f64,
    /// p50, p95, p99 and peak in KB.
    pub queue: Option<[f64; 4]>,
    /// Whether there was any pause.
    pub pause: bool,
}

/// A cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterAnchor {
    /// Flow sizes.
    pub traffic: Traffic,
    /// Load.
    pub load: f64,
    /// The algorithm.
    pub scheme: Scheme,
    /// Medians at the size percentiles.
    pub p50: [f64; 5],
    /// 95th percentiles.
    pub p95: [f64; 5],
    /// 99th percentiles.
    pub p99: [f64; 5],
}

/// A cluster of figure 11 of the HPCC paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Load of the links by FB_Hadoop.
    pub load: f64,
    /// The same by 60:1 incasts.
    pub incast: f64,
    /// The algorithm.
    pub scheme: Scheme,
    /// 95th percentiles by size.
    pub p95: [f64; 4],
    /// Percent of port time.
    pub pause: f64,
}

impl Anchors {
    /// The numbers of this release.
    pub fn load() -> Result<Self> {
        toml::from_str(include_str!("../data/anchors.toml")).context("data/anchors.toml")
    }
}
