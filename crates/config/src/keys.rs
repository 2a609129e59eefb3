//! Tables by their keys: the keys that are set, and the overlay of one table on another.
//!
//! Both use the serialized form of a table, so each key is listed in one place, its structure.

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Table;

use crate::pairs::explain;

/// The keys that are set, with their values.
fn written<T: Serialize>(table: &T) -> Table {
    Table::try_from(table).expect("tables hold texts, switches and numbers of 32 bits at the most")
}

/// The keys of both tables; those of `over` take precedence.
pub(crate) fn overlay<T: Serialize + DeserializeOwned>(under: &T, over: &T) -> T {
    let mut both = written(under);
    // Unset keys are not serialized, so only set keys replace others.
    both.extend(written(over));
    both.try_into().expect("what is written can be read")
}

/// Returns `new`, in which the keys in `kept` have the values that they have in `old`. A key that
/// `old` does not set is unset.
pub(crate) fn keep<T: Serialize + DeserializeOwned>(old: &T, new: &T, kept: &[&str]) -> T {
    let mut all = written(new);
    all.retain(|key, _| !kept.contains(&key));
    all.extend(written(old).into_iter().filter(|(key, _)| kept.contains(&key.as_str())));
    all.try_into().expect("what is written can be read")
}

/// Returns the table without `key`. A key that tables of this type do not have is refused.
pub(crate) fn without<T: Serialize + DeserializeOwned>(table: &T, key: &str) -> Result<T, String> {
    let mut rest = written(table);
    // serde checks the name of a key before the type of its value. So this probe finds an unknown
    // key, and the error lists the known ones.
    let mut probe = Table::new();
    probe.insert(key.to_owned(), toml::Value::Boolean(true));
    if let Err(error) = probe.try_into::<T>()
        && error.message().starts_with("unknown field")
    {
        return Err(explain(error.message()));
    }
    rest.remove(key);
    Ok(rest.try_into().expect("what is written can be read"))
}

/// A key that is set and is not in `keys`, the keys that the value of the key `which` allows.
pub(crate) fn foreign<T: Serialize>(table: &T, which: &str, keys: &[&str]) -> Option<String> {
    written(table)
        .into_iter()
        .map(|(key, _)| key)
        .find(|key| key != which && !keys.contains(&key.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceTable;
    use crate::policy::PolicyTable;
    use crate::tenant::TenantTable;

    /// Checks that tables survive serialization.
    fn comes_through<T>(texts: &[&str])
    where
        T: Serialize
            + DeserializeOwned
            + PartialEq
            + std::fmt::Debug
            + std::str::FromStr<Err = String>,
    {
        for text in texts {
            let table: T = text.parse().unwrap();
            assert_eq!(overlay(&table, &table), table, "{text}");
        }
    }

    #[test]
    fn values_are_not_changed_on_the_way() {
        comes_through::<PolicyTable>(&[
            "none",
            "mqfq:D=64,T=1,virtual-time=scan,slot-kind=counter,unthrottle=poll:1500ns,read-cost=1.33,write-cost=1%,least-cost=4k",
            "mqfq:T=9007199254740993,unthrottle=wheel",
            "d2fq:tau-l=8m,tau-m=1000001,tau-w=1T,grace=1ns,period=1.5s,hl=static-3,tracker=mindicator,strict-paper,urgent=7%",
            "d2fq:hl=dynamic,initial=256",
            "nass+bfq:merge=12k,budget=511,timeout=333us,idle=0ns,channels=8,sub-request=4k,history=64,decay=3,reserve=6,\
             queue-length=64,aggressiveness=off,sequentiality=on,idleness=false",
            "cfq:slice=7ms,target=61ms,quantum=4294967295",
            "kyber:read-target=1us,write-target=2h,discard-target=3s,read-depth=1,write-depth=2,discard-depth=3,other-depth=4,merge=off",
            "kyber-fair:busy=3,patience=17,tokens=5,period=99ms",
            "flashfq:request-cost=8k",
            "bfq:wait-for-equals,sync-writes=off",
        ]);
        comes_through::<DeviceTable>(&[
            "paced,size=1537,iops=12345,bandwidth=1234567/s,latency=81us,parallelism=3",
            "./pool.img,size=10G,create,direct=off",
            "nvme-soft,backing=./a,profile=z-ssd,state=fresh,slowdown=300,window=64,queues=9,wrr=off,poller=core",
        ]);
        comes_through::<TenantTable>(&[
            "db=1234567,offset=512,weight=10000,read-only,urgent=off,identity=a \
             b,description=c=d,,e",
            "db,weight=cgroup:/tenants/db,path=/a b/c,create,keep-data,store=fast",
            "db,latency=1500us,latency-percentile=99.9,floor=0.25",
            "db,uid=1+2,user=a+b,group=c,connections=3,vhost-user=/run/a b.sock",
        ]);
    }
}
