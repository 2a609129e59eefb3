//! The fuzz targets' use of their bytes. The tests of `fairq-host` use the same code, to replay the
//! seeds on stable and to try generated scripts.

pub mod nbd;
pub mod nvme;
pub mod vfio_user;
pub mod vhost;
