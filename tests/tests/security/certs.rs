//! Certificates of one test: authorities, and what they sign.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType, date_time_ymd,
    string::Ia5String,
};

/// Signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, PEM.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    pub(crate) cert: String,
    pub(crate) key: String,
}

/// When a certificate is good.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validity {
    Now,
    Past,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }
    /// With these alternative names: URIs where there is a scheme, else DNS names.
    pub(crate) fn issue(&self, names: &[&str]) -> Issued {
        self.issue_valid(names, Validity::Now)
    }
    pub(crate) fn issue_valid(&self, names: &[&str], validity: Validity) -> Issued {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        for &name in names {
            let name5 = Ia5String::try_from(name).unwrap();
            let uri = name.contains("://");
            params.subject_alt_names.push(if uri { SanType::URI(name5) } else { SanType::DnsName(name5) });
        }
        if validity == Validity::Past {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2020, 2, 1);
        }
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        Issued { cert: cert.pem(), key: key.serialize_pem() }
    }
}
